"""``ternary``, ``qsgd`` and ``natural`` are right on average, ``sign`` and ``onebit`` contract: each by its closed form."""

from __future__ import annotations

import math

import pytest
import torch

from tests.codecs.by_hand import signs
from tests.codecs.checks.cases import NOISE, gaussian
from tests.codecs.checks.unbiased import check_unbiased
from torchrec_qcomm import codecs
from torchrec_qcomm.codecs import CodecLike, CodecSpec
from torchrec_qcomm.codecs.parts.memory import Scratch
from torchrec_qcomm.codecs.parts.noise import Draw
from torchrec_qcomm.errors import CodecError

ROWS = gaussian(4000, 128, seed=3)
GAUSSIAN = gaussian(61, seed=5)
VARIANTS: list[CodecLike] = ["ternary", *({"codec": "qsgd", "bits": b, "norm": n} for b in (2, 4, 8) for n in ("l2", "max"))]
VARIANTS += [{"codec": "natural", "bits": b} for b in (8, 4)]


def round_trip(like: CodecLike, values: torch.Tensor) -> torch.Tensor:
    codec = codecs.get(like)
    return codec.decode(codec.encode(values, noise=NOISE), values.shape[-1])


def relative(like: CodecLike, values: torch.Tensor) -> float:
    return float((round_trip(like, values) - values).norm() / values.norm())


def to_bf16(value: float) -> float:
    """Rounded up."""
    step = 2.0 ** (math.frexp(value)[1] - 8)
    return math.ceil(value / step) * step


def with_levels(*levels: float) -> torch.Tensor:
    """Gaussian values, smaller than any level, behind values that must not move and zeros."""
    return torch.cat([torch.tensor([*levels, 0.0, -0.0]), GAUSSIAN * 0.25])


def test_ternary_is_unbiased_with_its_closed_variance() -> None:
    row = with_levels(1.25, -1.25)  # 1.25 is exact in BF16, and the largest
    s = 1.25
    measured = check_unbiased(codecs.get("ternary"), row, lambda x: s * x.abs() - x**2)
    closed = float(s * row.double().abs().sum() - row.double().square().sum())
    assert float(measured.sum()) == pytest.approx(closed, rel=0.03)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("norm", ["l2", "max"])
def test_qsgd_is_unbiased_within_the_bound_of_its_paper(bits: int, norm: str) -> None:
    s = 2 ** (bits - 1) - 1
    if norm == "max":
        row = torch.cat([with_levels(s, -1.0), GAUSSIAN * s / 8])
    else:  # the last value makes the norm one for which the scale is 1, so that 1 and -2 are levels
        row = with_levels(1.0, -2.0) if s > 1 else torch.linspace(-0.16, 0.16, 60)
        row = torch.cat([row, ((s * (1 - 2.0**-10)) ** 2 - row.double().square().sum()).sqrt().float()[None]])
    x, scale = row.double(), 1.0
    size = float(x.norm() if norm == "l2" else x.abs().max())
    assert to_bf16(size / s) == scale

    def variance(x: torch.Tensor) -> torch.Tensor:
        part = x / scale - (x / scale).floor()
        return scale**2 * part * (1 - part)

    measured = check_unbiased(codecs.get({"codec": "qsgd", "bits": bits, "norm": norm}), row, variance).sum()
    d = len(row)
    assert measured <= d * (scale / 2) ** 2
    if norm == "l2":
        assert measured <= min(d / s**2, math.sqrt(d) / s) * size**2 * 1.016


@pytest.mark.parametrize("bits", [8, 4])
def test_natural_is_unbiased_within_an_eighth(bits: int) -> None:
    row = torch.cat([with_levels(1.0, -0.5, 0.125, 2.0**-6), GAUSSIAN[:20] * 0.008])  # the last ones underflow at 4 bits
    smallest = 2.0 ** (1 - (2 ** (bits - 1) - 1))
    expected = row.double().abs().max()
    assert expected == 1.0

    def variance(x: torch.Tensor) -> torch.Tensor:
        size = x.abs()
        power = torch.exp2(torch.frexp(size)[1].double() - 1)
        under = size < smallest
        low, high = torch.where(under, 0.0, power), torch.where(under, smallest, 2 * power)
        return (size - low) * (high - size)

    measured = check_unbiased(codecs.get({"codec": "natural", "bits": bits}), row, variance)
    below = int((row.abs() < smallest).sum())
    assert (below > 20) == (bits == 4)
    exact = row.double()
    assert measured.sum() <= exact.square().sum() / 8 + below * smallest**2 / 4
    normal = exact.abs() >= smallest
    assert (measured[normal] <= exact[normal].square() / 8 * 1.15).all()


def test_clipping_is_biased_as_said() -> None:
    codec = codecs.get({"codec": "ternary", "clip": 2.5})
    row = torch.full((64,), 0.1)
    row[0] = 4.0  # rms 0.51, so it is clipped at 1.27
    found = torch.stack([codec.decode(codec.encode(row, noise=codecs.Noise(i)), 64) for i in range(100)])
    assert (found[:, 0] == found[0, 0]).all()
    assert 1.25 < found[0, 0] < 1.3
    assert relative({"codec": "ternary", "clip": 2.5}, ROWS[:2000]) < relative("ternary", ROWS[:2000]) - 0.1
    constant = torch.full((3, 32), -3.5)
    assert torch.equal(round_trip({"codec": "ternary", "clip": 2.5}, constant), constant)


def test_sign_contracts_by_its_identity() -> None:
    rows = torch.cat([ROWS[:200], ROWS[:50] + 3, torch.eye(128)[:3] * 1e20, ROWS[:50] ** 3 * 1e-15])
    x, decoded = rows.double(), round_trip("sign", rows).double()
    squared = x.square().sum(-1)
    mean = x.abs().mean(-1)
    identity = (1 - x.abs().sum(-1) ** 2 / (128 * squared)) * squared
    scale = decoded.abs().amax(-1)
    assert ((scale / mean - 1).abs() <= 2.0**-8).all(), "not the nearest BF16"
    rounding = 128 * (scale - mean) ** 2  # exact, since the mean is the best scale
    torch.testing.assert_close((decoded - x).square().sum(-1), identity + rounding, rtol=1e-11, atol=0.0)
    exact = torch.tensor([[1.0, -3.0, 2.0, -2.0]])  # mean 2
    assert (round_trip("sign", exact) - exact).square().sum() == (1 - 64 / (4 * 18)) * 18


@pytest.mark.parametrize("scale", ["bf16", "fp16", "fp32", "e8m0"])
def test_sign_never_does_worse_than_zeros(scale: str) -> None:
    """However small or large the row, and whatever its scale is rounded to."""
    rows = torch.cat([ROWS[:500], torch.ones(500, 128)]) * torch.logspace(-44, 38, 1000).roll(300).unsqueeze(1)
    rows = rows.clamp(-3e38, 3e38)
    error = (round_trip({"codec": "sign", "scale": scale}, rows).double() - rows.double()).norm(dim=-1)
    assert (error <= rows.double().norm(dim=-1)).all()


def test_onebit_contracts_by_its_identity() -> None:
    rows = torch.cat([ROWS[:200], ROWS[:50] + 3, ROWS[:50].abs(), -ROWS[:50].abs(), ROWS[:50] ** 3 * 1e-15])
    x, decoded = rows.double(), round_trip("onebit", rows).double()
    expected = x.square().sum(-1)
    for side in (x < 0, x >= 0):
        n = side.sum(-1).clamp(min=1)
        mean, level = (x * side).sum(-1) / n, (decoded * side).sum(-1) / n
        assert ((level - mean).abs() <= 2.0**-8 * mean.abs()).all(), "not the nearest BF16"
        expected += n * ((level - mean) ** 2 - mean**2)
    torch.testing.assert_close((decoded - x).square().sum(-1), expected, rtol=1e-11, atol=0.0)


def test_onebit_keeps_sides_of_very_different_size_apart() -> None:
    row = torch.tensor([[1e30, 3e30, -1e-30, -3e-30]])
    assert torch.allclose(round_trip("onebit", row), torch.tensor([[2e30, 2e30, -2e-30, -2e-30]]), rtol=2**-8, atol=0.0)


@pytest.mark.parametrize(
    ("like", "low", "high"),
    [
        ("sign", 0.58, 0.61),
        ("onebit", 0.58, 0.61),
        ("natural", 0.27, 0.30),
        ({"codec": "natural", "bits": 4}, 0.27, 0.30),
        ({"codec": "qsgd", "bits": 8}, 0.033, 0.038),
        ({"codec": "qsgd", "bits": 8, "norm": "max"}, 0.008, 0.010),
        ("qsgd", 0.64, 0.68),
        ({"codec": "qsgd", "norm": "max"}, 0.155, 0.175),
        # Worse than sending nothing: their docstrings say so.
        ({"codec": "qsgd", "bits": 2}, 2.7, 2.95),
        ({"codec": "qsgd", "bits": 2, "norm": "max"}, 1.08, 1.16),
        ("ternary", 1.08, 1.16),
    ],
)
def test_relative_error_of_gaussian_rows(like: CodecLike, low: float, high: float) -> None:
    assert low <= relative(like, ROWS) <= high


def test_what_is_worse_than_nothing_says_so() -> None:
    for like in VARIANTS:
        if relative(like, ROWS[:1000]) > 1:
            assert "worse than sending nothing" in " ".join((type(codecs.get(like)).__doc__ or "").split())


@pytest.mark.parametrize("amplitude", [1e-35, 1e-30, 1e-15, 1.0, 1e15, 1e30, 1e36])
@pytest.mark.parametrize("like", ["sign", "onebit", *VARIANTS], ids=str)
def test_any_amplitude_in_one_payload(like: CodecLike, amplitude: float) -> None:
    ones = ROWS[:300]
    mixed = torch.cat([ones, ones * amplitude])
    error = round_trip(like, mixed)[300:].double() - mixed[300:].double()
    assert float(error.norm() / mixed[300:].double().norm()) == pytest.approx(relative(like, ones), rel=0.06)


@pytest.mark.parametrize("bits", [8, 4])
def test_natural_gives_powers_of_two(bits: int) -> None:
    decoded = round_trip({"codec": "natural", "bits": bits}, ROWS[:100] * torch.logspace(-30, 30, 100).unsqueeze(1))
    mantissa = torch.frexp(decoded.abs())[0]
    assert ((mantissa == 0.5) | (decoded == 0)).all()
    assert (decoded == 0).any() == (bits == 4)


@pytest.mark.parametrize("like", VARIANTS[1:], ids=str)
@pytest.mark.parametrize("dim", [1, 7, 64])
def test_bytes_of_all_widths_equal_the_oracle(like: CodecLike, dim: int) -> None:
    assert isinstance(like, dict)
    params = {key: value for key, value in like.items() if key != "codec"}
    values = gaussian(40, dim, seed=dim) * torch.logspace(-20, 20, 40).unsqueeze(1)
    data = codecs.get(like).encode(values, noise=NOISE)
    noise = Draw(NOISE, values.device).uniform(tuple(values.shape), Scratch(values.device))
    for row, uniforms, found in zip(values.tolist(), noise.tolist(), data.tolist(), strict=True):
        assert bytes(found) == signs.ORACLES[like["codec"]](row, uniforms, **params)


def test_short_names() -> None:
    assert str(codecs.spec("qsgd")) == "qsgd4"
    assert str(codecs.get({"codec": "qsgd", "bits": 4, "norm": "max"}).spec) == "qsgd4(norm=max)"
    assert str(codecs.spec({"codec": "qsgd", "bits": 8, "scale": "e8m0"})) == "qsgd8(scale=e8m0)"
    assert str(codecs.spec("natural")) == "natural8"
    assert str(codecs.spec({"codec": "natural", "bits": 4})) == "natural4"
    assert str(codecs.spec({"codec": "ternary", "clip": 2.5})) == "ternary(clip=2.5)"
    full = CodecSpec("qsgd", (("bits", 4), ("norm", "max"), ("scale", "bf16")))
    assert codecs.spec({"codec": "qsgd", "norm": "max"}) == full
    assert codecs.get(full).spec == full != codecs.spec("qsgd")
    assert codecs.spec({"codec": "ternary", "clip": 2}) == codecs.spec({"codec": "ternary", "clip": 2.0})


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({"codec": "qsgd", "bits": 3}, "codec qsgd, bits: bad value; got 3; allowed: 2, 4, 8"),
        ({"codec": "qsgd", "bits": "4"}, "codec qsgd, bits: bad value; got '4'"),
        ({"codec": "qsgd", "bits": 4.0}, "codec qsgd, bits: bad value; got 4.0"),
        ({"codec": "qsgd", "norm": "l1"}, "codec qsgd, norm: bad value; got 'l1'; allowed: l2, max"),
        ({"codec": "qsgd", "scale": "fp32"}, "codec qsgd, scale: unknown format; got 'fp32'; allowed: bf16, e8m0, fp16"),
        ({"codec": "natural", "bits": 2}, "codec natural, bits: bad value; got 2; allowed: 4, 8"),
        ({"codec": "ternary", "clip": 0}, "codec ternary, clip: bad value; got 0; allowed: None, or a number > 0"),
        ({"codec": "ternary", "clip": True}, "codec ternary, clip: bad value"),
        ({"codec": "ternary", "clip": math.nan}, "codec ternary, clip: bad value"),
        ({"codec": "ternary", "clip": math.inf}, "codec ternary, clip: bad value"),
        ({"codec": "sign", "scale": "fp64"}, "codec sign, scale: unknown format"),
        ({"codec": "onebit", "scale": "fp32"}, "codec onebit: unknown parameter"),
    ],
)
def test_bad_parameters(like: CodecLike, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        codecs.get(like)
