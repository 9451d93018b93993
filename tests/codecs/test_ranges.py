"""Ranges other than each row's own: percentiles of a row, and one range for the rows of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.codecs.checks.cases import DIMS, DTYPES, NOISE, as_dtype, check_contract, finite_classes, gaussian, spoilt
from tests.codecs.checks.unbiased import check_unbiased
from torchrec_qcomm import codecs
from torchrec_qcomm.codecs.formats.one_range import OneRange
from torchrec_qcomm.errors import CodecError
from torchrec_qcomm.policy import Policy, Rule

PERCENTILE: list[dict[str, Any]] = [
    {"codec": name, "range": {"percentile": p}, "rounding": rounding}
    for name, p, rounding in (("int8", 99, "nearest"), ("int8", 60.5, "stochastic"), ("int4", 90, "nearest"))
]
SHARED: list[dict[str, Any]] = [
    {"codec": name, "range": {"ema": 0.9}, "rounding": rounding}
    for name in ("int8", "int4")
    for rounding in ("nearest", "stochastic")
]


def shared(like: dict[str, Any], low: float, high: float) -> Any:
    """A codec whose rows share the range from ``low`` to ``high``."""
    codec = codecs.get(like)
    assert isinstance(codec, OneRange)
    return codec.within(codec.range_header(torch.tensor(low), torch.tensor(high)))


@pytest.mark.parametrize("like", PERCENTILE, ids=lambda like: str(codecs.spec(like)))
@pytest.mark.parametrize("dtype", DTYPES)
def test_percentiles_keep_the_contract(like: dict[str, Any], dtype: torch.dtype) -> None:
    for dim in DIMS:
        codec = codecs.get(like)
        for name, values in {**finite_classes(dim), **spoilt(dim)}.items():
            decoded = check_contract(codec, as_dtype(values, dtype), f"{name}, {dim}")
            if name == "zeros":
                assert (decoded == 0).all()
        assert codec.row_bytes(dim) == codecs.get(like["codec"]).row_bytes(dim)
        assert check_contract(codec, gaussian(0, dim), "no rows").shape == (0, dim)


@pytest.mark.parametrize(("dim", "percent"), [(128, 99), (128, 90), (50, 75), (5, 60), (2, 99), (1, 99)])
def test_percentiles_are_those_of_numpy(dim: int, percent: float) -> None:
    """What comes back is what int8 makes of the rows clamped to numpy's percentiles."""
    x = gaussian(40, dim)
    x[:, 0] *= 50
    ends = [np.percentile(x.double().numpy(), q, axis=1, keepdims=True) for q in ((100 - percent) / 2, (100 + percent) / 2)]
    clamped = torch.from_numpy(np.clip(x.double().numpy(), *ends)).float()
    codec, plain = codecs.get({"codec": "int8", "range": {"percentile": percent}}), codecs.get("int8")
    got, want = codec.decode(codec.encode(x), dim), plain.decode(plain.encode(clamped), dim)
    assert (got - want).abs().max() <= (ends[1] - ends[0]).max() * 1e-5
    if dim > 2:
        assert not torch.equal(got, plain.decode(plain.encode(x), dim))


def test_a_percentile_makes_the_other_values_of_a_row_with_outliers_finer() -> None:
    """128 Gaussian values, two of them a hundred times as large: of the others int4 keeps nothing, and with 97 % most."""
    x = gaussian(200, 128)
    x[:, 3], x[:, 77] = 100.0, -100.0
    rest = [i for i in range(128) if i not in (3, 77)]
    errors = []
    for like in ("int4", {"codec": "int4", "range": {"percentile": 97}}):
        codec = codecs.get(like)
        lost = (codec.decode(codec.encode(x), 128) - x)[:, rest]
        errors.append(float(lost.norm() / x[:, rest].norm()))
    assert errors[0] > 1
    assert errors[1] < 0.15


@pytest.mark.parametrize("like", SHARED, ids=lambda like: str(codecs.spec(like)))
@pytest.mark.parametrize("dtype", DTYPES)
def test_shared_ranges_keep_the_contract(like: dict[str, Any], dtype: torch.dtype) -> None:
    for dim in DIMS:
        bits = 8 if like["codec"] == "int8" else 4
        for low, high in ((-4.0, 4.0), (-1e-30, 3e-30), (0.0, 0.0), (-3e38, 3e38), (0.0, 10.0), (-7.0, 0.0)):
            codec = shared(like, low, high)
            assert codec.row_bytes(dim) == -(-dim * bits // 8)
            for name, values in {**finite_classes(dim), **spoilt(dim)}.items():
                decoded = check_contract(codec, as_dtype(values, dtype), f"{name}, {dim}, {low} to {high}")
                assert (decoded[as_dtype(values, dtype) == 0] == 0).all() or name in spoilt(dim)
            assert codec.encode(gaussian(0, dim), noise=NOISE).shape == (0, codec.row_bytes(dim))
        assert torch.equal(codec.encode(gaussian(dim), noise=NOISE), codec.encode(gaussian(1, dim), noise=NOISE)[0])


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_inside_its_range_a_value_is_off_by_half_a_step(name: str) -> None:
    levels = 254 if name == "int8" else 14
    step = 4 / levels
    x = torch.linspace(-1, 3, 4096).view(32, 128)
    codec = shared({"codec": name, "range": {"ema": 0.9}}, -1.0, 3.0)
    error = (codec.decode(codec.encode(x), 128) - x).abs().max()
    assert 0.45 * step < error <= 0.5 * step * (1 + 1e-4)
    far = codec.decode(codec.encode(torch.tensor([[-1e9, 1e9, 3.4e38]])), 3)
    assert torch.allclose(far, torch.tensor([[-1.0, 3.0, 3.0]]), atol=step)  # saturates


def test_every_column_has_the_range_of_its_table() -> None:
    """``[rows, columns, dim]`` with a head a column is what each column is by itself, in whatever chunks."""
    codec = codecs.get({"codec": "int8", "range": {"ema": 0.5}, "rounding": "stochastic"})
    assert isinstance(codec, OneRange)
    x = gaussian(9000, 3, 64) * torch.tensor([1.0, 100.0, 1e-3]).view(3, 1)
    ends = x.abs().amax(dim=(0, 2))
    heads = codec.range_header(-ends, ends)
    assert heads.shape == (3, 8)
    together = codec.within(heads)
    decoded = together.decode(together.encode(x, noise=NOISE), 64)
    step = (2 * ends / 254).view(3, 1)
    assert ((decoded - x).abs() <= step * 1.001).all()
    for column in range(3):
        alone = codec.within(heads[column])
        assert torch.equal(decoded[:, column], alone.decode(together.encode(x, noise=NOISE)[:, column], 64))


GOLDEN = [
    # From -1 to 2.5 in 14 steps of 0.25; zero is level 4. -1 -> -4 -> code 0, 2.5 -> 10 -> 14, 0.3 -> 1.2 -> 1 -> 5, and with a
    # NaN in the row 15 throughout. Two codes a byte, the first in the low nibble.
    ("int4", (-1.0, 2.5), [[-1.0, 2.5, 0.3]], "e0 05"),
    ("int4", (-1.0, 2.5), [[0.0, float("nan"), 0.3]], "ff 0f"),
    # From -127 to 127 a step is 1, and zero is level 127.
    ("int8", (-127.0, 127.0), [[-127.0, 0.0, 1.4, 500.0]], "00 7f 80 fe"),
]


@pytest.mark.parametrize(("name", "ends", "row", "expected"), GOLDEN)
def test_golden_bytes(name: str, ends: tuple[float, float], row: list[list[float]], expected: str) -> None:
    codec = shared({"codec": name, "range": {"ema": 0.9}}, *ends)
    assert bytes(codec.encode(torch.tensor(row)).flatten().tolist()).hex(" ") == expected


def test_golden_head() -> None:
    """FP32, little-endian: step 1.0 is 0x3f800000, zero level 127.0 is 0x42fe0000."""
    codec = codecs.get({"codec": "int8", "range": {"static": [-127, 127]}})
    assert isinstance(codec, OneRange)
    assert codec.range_header_bytes == 8
    head = codec.range_header(torch.tensor(-127.0), torch.tensor(127.0))
    assert bytes(head.tolist()).hex(" ") == "00 00 80 3f 00 00 fe 42"


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_another_implementation_agrees(name: str) -> None:
    """Plain Python, value by value."""
    bits = 8 if name == "int8" else 4
    levels = 2**bits - 2
    generator = torch.Generator().manual_seed(3)
    for dim in (1, 2, 5, 13):
        x = torch.randn(20, dim, generator=generator) * 2
        low, high = -1.75, 2.5
        step = np.float32(np.float32(high / levels) - np.float32(low / levels))
        zero = int(np.rint(np.float32(-low) / step))
        rows = []
        for row in x.numpy():
            found = [max(0, min(levels, int(np.rint(value / step)) + zero)) for value in row]
            if bits == 4:
                found = [a | b << 4 for a, b in zip(found[::2], [*found[1::2], 0], strict=False)]
            rows.append(found)
        codec = shared({"codec": name, "range": {"ema": 0.9}}, low, high)
        assert codec.encode(x).tolist() == rows


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_stochastic_is_unbiased_within_the_range(name: str) -> None:
    """Variance ``step**2 f (1 - f)``."""
    levels, row = (254, 14)[name == "int4"], gaussian(64, seed=5).clamp(-2.5, 2.5)
    step = 6.0 / levels

    def variance(exact: torch.Tensor) -> torch.Tensor:
        fraction = (exact / step) % 1
        return step**2 * fraction * (1 - fraction)

    codec = shared({"codec": name, "range": {"ema": 0.9}, "rounding": "stochastic"}, -3.0, 3.0)
    assert (check_unbiased(codec, row, variance) <= 1.15 * step**2 / 4).all()
    on_levels = torch.arange(-7, 8) * torch.tensor(step)
    assert torch.equal(codec.decode(codec.encode(on_levels, noise=NOISE), 15), on_levels)


def test_a_static_range_works_by_itself_and_a_moving_one_says_what_it_needs() -> None:
    static = codecs.get({"codec": "int8", "range": {"static": [-3, 3]}})
    x = gaussian(5, 16).clamp(-3, 3)
    assert (static.decode(static.encode(x), 16) - x).abs().max() <= 3 / 254 * 1.001
    moving = codecs.get({"codec": "int8", "range": {"ema": 0.9}})
    with pytest.raises(CodecError, match=r"its range is that of a sender, and moves.*codec\.within"):
        moving.encode(x)


@pytest.mark.parametrize("like", [*PERCENTILE, *SHARED, {"codec": "int4", "range": {"static": [-1, 0]}}])
def test_a_spec_names_the_range(like: dict[str, Any]) -> None:
    spec = codecs.spec(like)
    assert "range=" in str(spec)
    assert codecs.get(spec).spec == spec != codecs.spec(like["codec"])
    assert codecs.spec({**like, "range": "row"}) == codecs.spec({k: v for k, v in like.items() if k != "range"})


@pytest.mark.parametrize(
    ("like", "message"),
    [
        (
            {"codec": "sign", "range": {"ema": 0.9}},
            "codec sign, range: .*each row's own; got 'ema 0.9'; allowed: row; others with int8",
        ),
        ({"codec": "none", "range": {"static": [-1, 1]}}, "codec none, range"),
        ({"codec": "fp8_e4m3", "range": {"percentile": 99}}, "codec fp8_e4m3, range"),
        ({"codec": "int8", "range": {"ema": 1}}, "range.ema: out of bounds; got 1; allowed: 0 or more, below 1"),
        ({"codec": "int8", "range": {"ema": True}}, "not a number"),
        ({"codec": "int8", "range": {"percentile": 100}}, "range.percentile: out of bounds; got 100"),
        ({"codec": "int8", "range": {"static": [1, 2]}}, "lo <= 0 <= hi"),
        ({"codec": "int8", "range": {"static": [0, 0]}}, "not the ends of a range"),
        ({"codec": "int8", "range": {"static": [-1, float("inf")]}}, "not the ends of a range"),
        ({"codec": "int8", "range": {"static": [-1, 10**400]}}, "range.static: out of bounds"),
        ({"codec": "int8", "range": {"static": [-1, 1, 2]}}, "not the ends of a range"),
        ({"codec": "int8", "range": {"static": 3}}, "not the ends of a range"),
        ({"codec": "int8", "range": {"quantile": 3}}, "not a range"),
        ({"codec": "int8", "range": {"ema": 0.9, "static": [-1, 1]}}, "not a range"),
        ({"codec": "int8", "range": "table"}, "not a range; got 'table'"),
        ({"codec": "int8", "rnage": "row"}, "unknown parameter; got 'rnage'; allowed: range, rounding"),
    ],
)
def test_what_a_codec_does_not_support_is_refused_with_the_policy(like: dict[str, Any], message: str) -> None:
    with pytest.raises(CodecError, match=message):
        Policy(forward=like)
    with pytest.raises(CodecError, match=message):
        Rule(tables="t", backward=like)
