"""Lookup tables: the levels are what they claim to be, bad ones are refused, learned ones are better."""

from __future__ import annotations

import math
import pickle
from itertools import pairwise

import pytest
import torch

from tests.codecs.checks.cases import FLT_MAX, check_contract, gaussian
from torchrec_qcomm import codecs
from torchrec_qcomm.codecs.formats.lut import Lut2, Lut4
from torchrec_qcomm.errors import CodecError
from torchrec_qcomm.policy import Policy, Table
from torchrec_qcomm.tune.learn import learn_levels

EVEN = [i - 7.5 for i in range(16)]


def laplace(*shape: int, seed: int) -> torch.Tensor:
    uniform = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) - 0.5
    return -uniform.sign() * torch.log1p(-2 * uniform.abs())


def relative_error(like: codecs.CodecLike, values: torch.Tensor) -> float:
    codec = codecs.get(like)
    return float((codec.decode(codec.encode(values), values.shape[-1]) - values).norm() / values.norm())


@pytest.mark.parametrize(("codec", "error"), [(Lut4(), 0.09747), (Lut2(), 0.34276)])
def test_the_default_levels_are_those_of_lloyd_and_max(codec: Lut4 | Lut2, error: float) -> None:
    """Each level is the mean of a normal distribution over its cell, which no other levels fulfil."""

    def density(x: float) -> float:
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    def below(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    ends = [-math.inf, *((a + b) / 2 for a, b in pairwise(codec.levels)), math.inf]
    explained = 0.0
    for level, (low, high) in zip(codec.levels, pairwise(ends), strict=True):
        mass = below(high) - below(low)
        assert level == pytest.approx((density(low) - density(high)) / mass, abs=2e-7)
        explained += mass * level**2
    assert math.sqrt(1 - explained) == pytest.approx(error, abs=1e-5)


def test_levels_are_part_of_the_spec() -> None:
    levels = [level * 1.1 for level in EVEN]
    spec = codecs.spec({"codec": "lut4", "levels": levels})
    assert dict(spec.params)["levels"] == tuple(torch.tensor(levels).tolist())
    assert codecs.get(spec).spec == spec == pickle.loads(pickle.dumps(spec))
    other = codecs.spec({"codec": "lut4", "levels": [*levels[:-1], 8.2501]})
    assert spec != other
    tables = [Table("t", rows=10, dim=8)]
    assert Policy(forward=spec).resolve(tables).to_dict() != Policy(forward=other).resolve(tables).to_dict()  # ranks disagree
    assert str(spec).startswith("lut4(levels=-8.25..8.25 #")
    assert str(codecs.spec("lut4")) == str(codecs.spec({"codec": "lut4", "levels": list(Lut4().levels)})) == "lut4"
    assert str(codecs.spec({"codec": "lut2", "scale": "fp32"})) == "lut2(scale=fp32)"


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        (3, "levels: not a list; got 3; allowed: 16 ascending numbers from -1024 to 1024"),
        ("abc", "levels: not a list"),
        (EVEN[:4], "levels: the wrong number of levels; got 4; allowed: 16"),
        (["1e-05", *EVEN[1:]], r"levels\.0: not a number; got '1e-05'"),
        ([*EVEN[:5], True, *EVEN[6:]], r"levels\.5: not a number; got True"),
        ([*EVEN[:-1], math.inf], r"levels\.15: not finite or too large; got inf"),
        ([*EVEN[:-1], math.nan], r"levels\.15: not finite or too large; got nan"),
        ([*EVEN[:-1], 1e4], r"levels\.15: not finite or too large; got 10000"),
        (EVEN[::-1], r"levels\.1: not in ascending order; got \[7\.5, 6\.5\]"),
        ([*EVEN[:-1], 6.5], r"levels\.15: the same level twice \(in FP32\); got \[6\.5, 6\.5\]"),
        ([*EVEN[:-1], 6.5 + 1e-9], r"levels\.15: the same level twice"),
    ],
)
def test_bad_levels_are_refused(levels: object, message: str) -> None:
    with pytest.raises(CodecError, match=f"codec lut4, {message}"):
        codecs.get({"codec": "lut4", "levels": levels})


def test_scales_that_would_ruin_it_are_refused() -> None:
    for scale in ("e8m0", "fp8"):
        with pytest.raises(CodecError, match=r"codec lut2, scale: unknown format; got .*; allowed: bf16, fp16, fp32"):
            codecs.get({"codec": "lut2", "scale": scale})


@pytest.mark.parametrize("name", ["lut4", "lut2"])
@pytest.mark.parametrize("amplitude", [1e-44, 1e-38, 1e-20, 1e20, 1e38, FLT_MAX])
def test_the_root_mean_square_neither_overflows_nor_vanishes(name: str, amplitude: float) -> None:
    values = torch.cat([gaussian(20, 65), torch.ones(1, 65)]).clamp(-1, 1) * amplitude
    decoded = check_contract(codecs.get(name), values, f"amplitude {amplitude}")
    if amplitude > 1e-38:
        assert (decoded - values).double().norm() < 0.35 * values.double().norm()


def test_values_beyond_the_levels_saturate() -> None:
    values = torch.zeros(1, 128)
    values[0, 3] = 64.0  # the root mean square is 64 / sqrt(128) = 5.657, in BF16 5.6875
    decoded = codecs.get("lut4").decode(codecs.get("lut4").encode(values), 128)[0]
    assert decoded[3] == 5.6875 * Lut4().levels[-1]
    assert (decoded[:3] == 5.6875 * Lut4().levels[7]).all()
    assert codecs.get("lut4").error_bound(values)[0, 3] == pytest.approx(64.0 - float(decoded[3]), rel=1e-5)


def test_an_fp16_scale_has_its_range() -> None:
    codec = codecs.get({"codec": "lut4", "scale": "fp16"})
    for amplitude in (1e-7, 1.0, 1e6):
        check_contract(codec, gaussian(20, 64) * amplitude, f"amplitude {amplitude}")
    assert relative_error(codec.spec, gaussian(20, 64) * 1e-3) < 0.11
    assert relative_error(codec.spec, gaussian(20, 64) * 1e6) > 0.5


@pytest.mark.parametrize("bits", [4, 2])
def test_learned_levels_are_better_on_what_they_were_learned_for(bits: int) -> None:
    levels = learn_levels(laplace(4000, 128, seed=1), bits)
    values = laplace(4000, 128, seed=2)
    learned = relative_error({"codec": f"lut{bits}", "levels": levels}, values)
    assert learned < {4: 0.8, 2: 0.97}[bits] * relative_error(f"lut{bits}", values)
    if bits == 4:
        assert learned < 0.93 * relative_error("int4", values)
    assert levels == learn_levels(laplace(4000, 128, seed=1), bits)
    assert all(lower < upper for lower, upper in pairwise(levels))


def test_learning_from_normal_rows_finds_the_default_levels() -> None:
    """Quantiles, where it starts, are up to 0.9 away."""
    for codec in (Lut4(), Lut2()):
        learned = torch.tensor(learn_levels(gaussian(8000, 256), codec.bits))
        assert (learned - torch.tensor(codec.levels)).abs().max() < 0.05


def test_learning_leaves_out_rows_that_say_nothing() -> None:
    rows = gaussian(300, 32)
    bad = rows.clone()[:3]
    bad[0], bad[1, 3], bad[2, 5] = 0, torch.inf, torch.nan
    assert learn_levels(torch.cat([rows, bad]), 4) == learn_levels(rows, 4)
    assert learn_levels(rows * torch.logspace(-30, 30, 300)[:, None], 2) == pytest.approx(learn_levels(rows, 2), abs=1e-4)
    assert learn_levels(rows.view(3, 100, 32), 2) == learn_levels(rows, 2)


def test_learning_with_many_equal_values() -> None:
    """Most quantiles of a sparse sample are one number; the levels are different all the same, and codecs take them."""
    values = gaussian(500, 64) * (torch.rand(500, 64, generator=torch.Generator().manual_seed(1)) < 0.1)
    levels = learn_levels(values, 4)
    assert relative_error({"codec": "lut4", "levels": levels}, values) < 0.5 * relative_error("lut4", values)


@pytest.mark.parametrize(
    ("sample", "bits", "message"),
    [
        (gaussian(4, 4), 3, "bits: no such codec; got 3; allowed: 2, 4"),
        (torch.zeros(4, 4), 4, r"no row to learn from; got \[4, 4\]"),
        (torch.full((4, 4), torch.nan), 4, "no row to learn from"),
        (torch.zeros(0, 4), 4, r"no row to learn from; got \[0, 4\]"),
        (torch.ones(4, 4), 2, r"are too few; got \[1\.0\]; allowed: at least 4 different values"),
        (torch.ones(4, 4, dtype=torch.int32), 2, r"not rows of floats; got '\[4, 4\] of torch\.int32'"),
        (torch.tensor(1.0), 2, "not rows of floats"),
    ],
)
def test_what_cannot_be_learned_from(sample: torch.Tensor, bits: int, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        learn_levels(sample, bits)
