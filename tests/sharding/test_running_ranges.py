"""The statistics behind a range, without ranks: what they take notice of, and what they are kept by."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.codecs.checks.cases import gaussian
from torchrec_qcomm import codecs
from torchrec_qcomm.codecs.formats.one_range import OneRange
from torchrec_qcomm.errors import ShardingError
from torchrec_qcomm.policy import Policy, Table
from torchrec_qcomm.sharding.precision import TableCodecs
from torchrec_qcomm.state.running_ranges import RunningRanges
from torchrec_qcomm.wire import Block

NAME = "t int8(range=ema 0.75)"


def ranged(**range: Any) -> OneRange:
    codec = codecs.get({"codec": "int8", "range": range or {"ema": 0.75}})
    assert isinstance(codec, OneRange)
    return codec


def told(ranges: RunningRanges, rows: torch.Tensor, training: bool = True) -> torch.Tensor:
    """Step and zero level for vectors ``[rows, dim]`` of the first table."""
    (table, codec), dim = ranges.tables[0], rows.shape[1]
    block = Block(codec, dim, rows.shape[0], (0,), dim, 8, codec.row_bytes(dim), (table,), (0,))
    (head,) = ranges.range_headers([(block, rows.unsqueeze(1))], training)
    return head.view(torch.float32)


def kept(ranges: RunningRanges, name: str = NAME) -> dict[str, float]:
    return {key: float(value) for key, value in ranges.state()[name].items()}


@pytest.mark.parametrize("first", [0.0, torch.nan, torch.inf])
def test_a_step_that_tells_no_range_leaves_it_alone(first: float) -> None:
    """Bags without ids look zeros up, and a loss scale that is too large makes a gradient without finite values."""
    ranges, rows = RunningRanges([("t", ranged())]), gaussian(8, 4)
    told(ranges, torch.full((8, 4), first))
    assert (kept(ranges)["updates"], kept(ranges)["values"]) == (0, 32)
    step = told(ranges, rows)[0, 0]
    assert float(step) == pytest.approx(float(rows.max() - rows.min()) / 254)
    for _ in range(5):
        assert told(ranges, torch.full((8, 4), first))[0, 0] == step
    found = kept(ranges)
    assert (found["updates"], found["values"], found["saturated"]) == (1, 7 * 32, 0)
    assert found["not finite"] == (0 if first == 0 else 6 * 32)


def test_a_moving_range_gives_the_past_the_weight_of_its_parameter() -> None:
    ranges = RunningRanges([("t", ranged())])
    for value in (1.0, 2.0):
        told(ranges, torch.tensor([[-value, 3 * value]]))
    assert (kept(ranges)["minimum"], kept(ranges)["maximum"]) == (-1.25, 3.75)


def test_evaluation_before_training_takes_the_range_of_the_step_and_keeps_none() -> None:
    ranges, rows = RunningRanges([("t", ranged())]), gaussian(8, 4)
    steps = [float(told(ranges, rows * scale, training=False)[0, 0]) for scale in (1.0, 10.0)]
    assert steps[1] == pytest.approx(10 * steps[0])
    assert not any(kept(ranges).values())


@pytest.mark.parametrize("value", [3e38, 1e-38, 65504.0])
def test_statistics_of_large_and_small_values_are_finite(value: float) -> None:
    """The sum of two FP32 values of 3e38 is none."""
    ranges = RunningRanges([("t", ranged())])
    for sign in (1, -1):
        told(ranges, torch.full((2, 3), sign * value))
    found = kept(ranges)
    assert found["mean"] == pytest.approx(0.5 * value)
    assert found["maximum"] == pytest.approx(0.5 * value)
    assert found["std"] == 0


def test_range_headers_are_fp32_whatever_the_default() -> None:
    rows, static = gaussian(8, 4).float(), ranged(static=[-3.0, 3.0])
    torch.set_default_dtype(torch.float64)
    try:
        assert told(RunningRanges([("t", ranged())]), rows).shape == (1, 2)
        assert static.encode(rows).shape == (8, 4)
    finally:
        torch.set_default_dtype(torch.float32)


def test_ranges_that_differ_a_little_are_kept_apart() -> None:
    """A table on two links; and what ranks compare is their text, too."""
    sites = [("t", ranged(ema=weight)) for weight in (0.9999999, 0.99999999)]
    assert len(RunningRanges(sites).state()) == 2
    assert str(ranged(static=[-1, 1.0000001]).spec) != str(ranged(static=[-1, 1]).spec)


@pytest.mark.parametrize("wrong", ["text", None, torch.ones(2), float("nan"), [1]])
def test_what_is_not_a_finite_number_is_no_statistic(wrong: Any) -> None:
    ranges = RunningRanges([("t", ranged())])
    state = {NAME: {**ranges.state()[NAME], "minimum": wrong}}
    with pytest.raises(ShardingError, match=r"here, .t int8.*not statistics"):
        ranges.check("here", state)
    for nothing in (3, {NAME: 3}, {}):
        with pytest.raises(ShardingError, match="here"):
            ranges.check("here", nothing)  # type: ignore[arg-type]


def test_a_codec_that_keeps_no_range_for_a_table_is_refused() -> None:
    """A wrapper has the bytes of what it wraps, and nobody would tell it the range."""

    class Wrapper:
        def __getattr__(self, name: str) -> Any:
            return getattr(ranged(), name)

    policy = Policy(forward={"codec": "int8", "range": {"ema": 0.75}}).resolve([Table("t", 10, 4)])
    with pytest.raises(ShardingError, match=r"codec_factory, int8\(range=ema 0.75\): .*got 'Wrapper'"):
        TableCodecs(policy, None, lambda spec: Wrapper()).check_payload("t", torch.float32)  # type: ignore[return-value]
    TableCodecs(policy, None, lambda spec: codecs.get(spec, "reference")).check_payload("t", torch.float32)


def test_evaluation_after_training_is_in_the_range_that_was_trained() -> None:
    ranges, rows = RunningRanges([("t", ranged())]), gaussian(8, 4)
    trained = told(ranges, rows)
    before = kept(ranges)
    assert torch.equal(told(ranges, rows * 10, training=False), trained)
    assert kept(ranges) == before
