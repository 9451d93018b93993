"""Values with which quantizers elsewhere were reported to fail, and random rounding that was lost or not repeatable.

Each test is named after what it checks, and runs over every codec or backend that it applies to.
"""

from __future__ import annotations

import pytest
import torch

from tests.codecs.checks.cases import ALL, CASES, NOISE, STOCHASTIC, case_id, gaussian
from torchrec_qcomm import codecs
from torchrec_qcomm.codecs import CodecLike
from torchrec_qcomm.errors import CodecError, ConfigError
from torchrec_qcomm.policy import Policy

Case = tuple[CodecLike, str]
ROUNDED: list[Case] = [case for case in STOCHASTIC if dict(codecs.spec(case[0]).params).get("rounding") == "stochastic"]


@pytest.mark.parametrize("case", ALL, ids=case_id)
def test_a_zero_row_is_not_zero_over_zero(case: Case) -> None:
    """Alone, and between rows that are not zero."""
    codec, values = codecs.get(*case), gaussian(3, 40)
    values[1] = 0
    decoded = codec.decode(codec.encode(values, noise=NOISE), 40)
    assert (decoded[1] == 0).all()
    assert decoded.isfinite().all()
    alone = codec.decode(codec.encode(torch.zeros(1, 40), noise=NOISE), 40)
    assert (alone == 0).all()


@pytest.mark.parametrize("case", ALL, ids=case_id)
def test_memory_that_held_nan_is_clean_after_a_smaller_batch(case: Case) -> None:
    """Bytes of a NaN payload are overwritten by a smaller one, and so are its decoded values; padding is not left over."""
    codec, dim = codecs.get(*case), 37
    big = torch.full((6, dim), torch.nan)
    data = codec.encode(big, noise=NOISE).clone()
    out = codec.decode(data, dim).clone()
    small = gaussian(2, dim)
    fresh = codec.encode(small, noise=NOISE).clone()
    codec.encode(small, out=data[:2], noise=NOISE)
    assert torch.equal(data[:2], fresh)
    codec.decode(data[:2], dim, out=out[:2])
    assert out[:2].isfinite().all()
    assert out[2:].isnan().all()  # what is not written to is not touched


def test_fp16_loses_neither_small_nor_large_gradients() -> None:
    """1e-7 and 6e4 in one payload, with the largest loss scale that 6e4 bears; one that it does not bear saturates."""
    values = torch.tensor([[1e-7, 6e4]])
    scale = 65504 / 6e4
    codec = codecs.get({"codec": "fp16", "loss_scale": scale})
    small, large = codec.decode(codec.encode(values), 2)[0].tolist()
    assert small == pytest.approx(1e-7, abs=2.0**-25 / scale)  # half of FP16's smallest step, unscaled
    assert small > 0
    assert large == pytest.approx(6e4, rel=2.0**-11)
    greedy = codecs.get({"codec": "fp16", "loss_scale": 1024})
    small, large = greedy.decode(greedy.encode(values), 2)[0].tolist()
    assert small == pytest.approx(1e-7, rel=2.0**-11)
    assert large == pytest.approx(65504 / 1024)  # finite, and far off: what a loss scale costs


@pytest.mark.parametrize("backend", codecs.backends("int8"))
def test_int8_of_a_constant_and_of_a_very_wide_row(backend: str) -> None:
    """Neither a range of zero nor one of 2e30 makes anything but numbers."""
    codec = codecs.get("int8", backend)
    constant = torch.full((2, 9), 3.7)
    assert torch.equal(codec.decode(codec.encode(constant), 9), constant)
    wide = torch.tensor([[-1e30, 1e30, 0.0, 3e29]])
    decoded = codec.decode(codec.encode(wide), 4)
    assert decoded.isfinite().all()
    assert (decoded - wide).abs().max() <= 2e30 / 510 * (1 + 1e-5)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_values_beyond_what_a_format_holds_saturate(case: Case) -> None:
    """The largest FP32 is a number in every backend: it never becomes Inf, NaN or a number of the other sign."""
    codec = codecs.get(*case)
    largest = torch.finfo(torch.float32).max
    for row in ([largest] * 5, [-largest] * 5, [largest, -largest] * 3):
        values = torch.tensor([row])
        decoded = codec.decode(codec.encode(values), len(row))
        assert decoded.isfinite().all()
        assert torch.equal(decoded.sign(), values.sign())


@pytest.mark.parametrize("case", ROUNDED, ids=case_id)
def test_no_backend_drops_stochastic_rounding(case: Case) -> None:
    """The mean of 4,096 encodings of one value between two levels is within four standard errors of it, and both occur."""
    codec = codecs.get(*case)
    row = gaussian(64, seed=11).clamp(-1.2, 1.2)
    one = codec.decode(codec.encode(row.expand(2, -1), noise=NOISE), 64)
    column = int((one[0] - row).abs().argmax())
    many = torch.stack(
        [codec.decode(codec.encode(row.expand(64, -1), noise=codecs.Noise(seed=5, step=i)), 64)[:, column] for i in range(64)]
    ).flatten()
    assert many.numel() == 4096
    assert len(many.unique()) == 2
    error = (many.double().mean() - row[column]).abs()
    assert error <= 4 * many.double().std() / 64


@pytest.mark.parametrize("case", STOCHASTIC, ids=case_id)
def test_the_same_seed_step_and_rank_give_the_same_bytes(case: Case) -> None:
    """And others give others, while torch's own generator is where it was."""
    codec, values = codecs.get(*case), gaussian(40, 48)
    key = {"seed": 1, "step": 2, "rank": 3, "site": "one"}
    torch.manual_seed(0)
    before = torch.get_rng_state()
    data = codec.encode(values, noise=codecs.Noise(**key))
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(17)
    assert torch.equal(codec.encode(values, noise=codecs.Noise(**key)), data)
    for other in ({"seed": 2}, {"step": 3}, {"rank": 4}, {"site": "other"}):
        assert not torch.equal(codec.encode(values, noise=codecs.Noise(**{**key, **other})), data)


@pytest.mark.parametrize("case", STOCHASTIC, ids=case_id)
def test_decoding_needs_no_seed(case: Case) -> None:
    """So ranks cannot garble each other's rows by seeds that differ. (That they do is refused at start-up all the same.)"""
    codec, values = codecs.get(*case), gaussian(5, 48)
    data = codec.encode(values, noise=codecs.Noise(seed=1))
    decoded = codec.decode(data, 48)
    assert ((decoded - values).abs() <= codec.error_bound(values)).all()


def test_a_misspelt_rounding_is_told_what_there_is() -> None:
    from torchrec_qcomm import QCommConfig

    like = {"codec": "int8", "rounding": "stochastc"}
    message = "rounding: unknown rounding; got 'stochastc'; allowed: nearest, stochastic. Did you mean 'stochastic'?"
    with pytest.raises(CodecError, match=message.replace("?", r"\?")):
        Policy(like)
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        QCommConfig.from_dict({"precision": {"default": {"forward": like}}})
