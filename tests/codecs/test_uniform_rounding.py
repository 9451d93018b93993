"""Nearest means the nearest level, stochastic means one of the two around and the value on average; int2's own promises."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tests.codecs.by_hand.uniform import ORACLES
from tests.codecs.checks.cases import FLT_MAX, NOISE, ROUNDED, gaussian
from tests.codecs.checks.unbiased import check_unbiased
from torchrec_qcomm import codecs
from torchrec_qcomm.codecs import Codec
from torchrec_qcomm.codecs.parts.memory import Scratch
from torchrec_qcomm.codecs.parts.noise import Draw

BITS = {"fp16": 16, "bf16": 16, "fp8_e4m3": 8, "fp8_e5m2": 8, "int8": 8, "int4": 4, "int2": 2}
FORMATS = {"fp16": (10, -14), "bf16": (7, -126), "fp8_e4m3": (3, -6), "fp8_e5m2": (2, -14)}
BACKENDS = [(name, backend) for name in ROUNDED for backend in codecs.backends(name)]


def stochastic(name: str, backend: str | None = None) -> Codec:
    return codecs.get({"codec": name, "rounding": "stochastic"}, backend)


def round_trip(codec: Codec, values: torch.Tensor) -> torch.Tensor:
    return codec.decode(codec.encode(values, noise=NOISE), values.shape[-1])


def levels_of(codec: Codec, row: torch.Tensor) -> torch.Tensor:
    """All finite values that the row's header lets a code stand for, in order: every code, decoded."""
    bits, dim = BITS[codec.spec.name], len(row)
    count = 1 << bits
    if bits >= 8:
        codes = b"".join(code.to_bytes(bits // 8, "little") for code in range(count))
    else:
        codes = sum(code << bits * code for code in range(count)).to_bytes(count * bits // 8, "little")
    header = codec.encode(row, noise=NOISE)[-(-dim * bits // 8) :]
    levels = codec.decode(torch.cat([torch.tensor(list(codes), dtype=torch.uint8), header]), count)
    return levels[levels.isfinite()].unique()


def around(levels: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The level at or below each value and the one at or above; the outermost level for what lies beyond."""
    above = torch.searchsorted(levels, row).clamp(max=len(levels) - 1)
    below = (torch.searchsorted(levels, row, right=True) - 1).clamp(min=0)
    return levels[below], levels[above]


@pytest.mark.parametrize(("name", "backend"), BACKENDS)
def test_nearest_is_the_nearest_level(name: str, backend: str) -> None:
    """So the squared error is the closed form: the sum of squared distances to the nearest level."""
    codec = codecs.get(name, backend)
    for i, row in enumerate(gaussian(20, 100, seed=5) * torch.logspace(-9, 9, 20).unsqueeze(1)):
        if name == "fp16":
            row = row.clamp(-6e4, 6e4)
        lower, upper = (level.double() for level in around(levels_of(codec, row), row))
        exact = row.double()
        nearest = torch.minimum((exact - lower).abs(), (upper - exact).abs())
        error = (round_trip(codec, row).double() - exact).abs()
        slack = 2.0**-20 * exact.abs().max()  # codes are computed in FP32
        assert (error <= nearest + slack).all(), i
        assert error.square().sum() == pytest.approx(float(nearest.square().sum()), rel=1e-3 if name == "int8" else 1e-5)


@pytest.mark.parametrize(("name", "backend"), BACKENDS)
def test_stochastic_is_one_of_the_two_levels_around(name: str, backend: str) -> None:
    codec, moved = stochastic(name, backend), 0
    for row in gaussian(20, 100, seed=6) * torch.logspace(-9, 4, 20).unsqueeze(1):
        lower, upper = around(levels_of(codec, row), row)
        found = round_trip(codec, row)
        # int8's and int4's levels are off by FP32 roundings: what counts as a level may lie on either side of it.
        slack = 2.0**-20 * float(row.abs().max())
        up, down = (found - upper).abs() <= slack, (found - lower).abs() <= slack
        assert (up | down).all()
        moved += int((up & ((upper - row) > (row - lower))).sum() + (down & ((upper - row) < (row - lower))).sum())
    assert moved > 200  # of 2000, to the farther one


@pytest.mark.parametrize(("name", "backend"), BACKENDS)
@pytest.mark.parametrize("dim", [7, 64])
def test_stochastic_bytes_equal_the_oracle(name: str, backend: str, dim: int) -> None:
    values = gaussian(60, dim, seed=dim) * torch.exp2(torch.randint(-8, 8, (60, 1), generator=torch.Generator().manual_seed(1)))
    values[::3] += 2.5
    values[::4, ::2] *= 2.0**-14  # also between subnormals
    data = stochastic(name, backend).encode(values, noise=NOISE)
    cpu = torch.device("cpu")
    uniforms = Draw(NOISE, cpu).uniform(tuple(values.shape), Scratch(cpu))
    for row, draws, found in zip(values.tolist(), uniforms.tolist(), data.tolist(), strict=True):
        expected = ORACLES[name](row, draws)
        if name != "int8":
            assert bytes(found) == expected
            continue
        # Its codes are computed in FP32: a part of a step that nearly equals the draw may fall on the other side.
        steps = [(v - min(row)) * 255 / (max(row) - min(row)) for v in row]
        close = [abs(step % 1 - u) < 1e-4 or abs(step - round(step)) < 1e-4 for step, u in zip(steps, draws, strict=True)]
        for code, right, near in zip(found[:dim], expected[:dim], close, strict=True):
            assert code == right or (near and abs(code - right) == 1)
        assert bytes(found[dim:]) == bytes(codecs.get(name, backend).encode(torch.tensor(row))[dim:].tolist())


def test_both_backends_of_int8_have_the_same_stochastic_bytes() -> None:
    values = gaussian(3000, 65) * torch.logspace(-30, 30, 3000).unsqueeze(1)
    values[::7] += 100.0
    values[::11] = 3.7
    values[5, 3] = math.nan
    slow, fast = (stochastic("int8", backend).encode(values, noise=NOISE) for backend in ("reference", "fbgemm"))
    good = torch.arange(3000) != 5
    assert torch.equal(slow[good], fast[good])


@pytest.mark.parametrize(("name", "backend"), BACKENDS)
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_exact_values_never_move(name: str, backend: str, offset: float) -> None:
    """Levels, decoded and so rounded to FP32, come back as they are, whatever the noise."""
    nearest, random = codecs.get(name, backend), stochastic(name, backend)
    values = gaussian(300, 64, seed=8) * torch.exp2(torch.arange(300) % 30 - 20.0).unsqueeze(1) + offset
    if name == "int2":
        # Its scale must come out again: 1, up from an RMS between 1 - 2**-8 and 1.
        inner = torch.arange(127) < 79
        values = torch.where(inner, 127.5 / 256, 382.5 / 256) * gaussian(300, 127).sign()
        values *= torch.exp2(torch.arange(300) % 30 - 20.0).unsqueeze(1)
        assert torch.equal(nearest.decode(nearest.encode(values), 127), values)
    levels = nearest.decode(nearest.encode(values), values.shape[-1])
    expected = nearest.encode(levels)
    again = nearest.decode(expected, values.shape[-1]) == levels  # int4's minimum and scale may be others than before
    assert again.float().mean() > 0.5
    for step in range(5):
        data = random.encode(levels, noise=codecs.Noise(step=step))
        assert torch.equal(random.decode(data, values.shape[-1])[again], levels[again])
        assert name == "int4" or torch.equal(data, expected)


def even(offset: float, step: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def variance(x: torch.Tensor) -> torch.Tensor:
        part = ((x - offset) / step) % 1
        return step**2 * part * (1 - part)

    return variance


def of_floats(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    mantissa, smallest = FORMATS[name]

    def variance(x: torch.Tensor) -> torch.Tensor:
        largest = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}.get(name)
        exponent = 0 if largest is None else math.ceil(math.log2(float(x.abs().max()) / largest))
        powers = torch.frexp(x.abs())[1].double() - 1
        step = torch.exp2(powers.clamp(min=smallest + exponent) - mantissa)
        part = (x.abs() / step) % 1
        return step**2 * part * (1 - part)

    return variance


def row_for(name: str, kind: str) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    """A row, of Gaussian values or half of them levels, and the variance of each."""
    row = gaussian(64, seed=9) * 0.7
    if name in FORMATS:
        if kind == "binades":  # from the largest power of two down to where all are subnormal
            row *= torch.exp2(-torch.linspace(0, 140 if name == "bf16" else 30, 64))
        if kind == "levels":
            row[::2] = torch.tensor([1.0, -1.5, 0.0, 2.0**-8, -1.75, 0.625, -0.0, 3.0]).repeat(4)
        return row, of_floats(name)
    if name == "int2":
        # Clipped at the outer levels, and grown until the RMS is a little less than 1, which is rounded up to 1.
        levels = torch.tensor([127.5, -127.5, 382.5, -127.5]).repeat(8) / 256
        while row.norm() < 0.998 * 8:
            row = (row * 1.001).clamp(-382.5 / 256, 382.5 / 256)
            if kind == "levels":
                row[::2] = levels
        return row, even(-382.5 / 256, 255 / 256)
    count = 255 if name == "int8" else 15
    step = 4.0 / (count + 1)
    row.clamp_(-1.9, 1.7)
    row[0], row[1] = -2.0, -2.0 + count * step  # so that minimum and scale need no rounding
    if kind == "levels":
        row[::2] = -2.0 + step * torch.arange(0, 32) % 3.5
        row[1] = -2.0 + count * step
    return row, even(-2.0, step)


UNBIASED = [(name, kind) for name in ROUNDED for kind in ("gaussian", "levels")]
UNBIASED += [(name, "binades") for name in FORMATS]


@pytest.mark.parametrize(("name", "kind"), UNBIASED)
def test_stochastic_is_unbiased(name: str, kind: str) -> None:
    row, variance = row_for(name, kind)
    assert kind != "levels" or (variance(row.double()) == 0).sum() >= 32
    check_unbiased(stochastic(name), row, variance)


@pytest.mark.parametrize("name", ROUNDED)
def test_faults_and_neighbours_do_not_change_stochastic_bytes(name: str) -> None:
    """Chunks with something special in them are encoded in another way."""
    values = gaussian(50, 33)
    values[::2, ::3] = -0.0
    clean = stochastic(name).encode(values, noise=NOISE)
    values[7, 3], values[9, 4], values[11] = math.nan, math.inf, FLT_MAX
    others = ~torch.isin(torch.arange(50), torch.tensor([7, 9, 11]))
    assert torch.equal(stochastic(name).encode(values, noise=NOISE)[others], clean[others])


@pytest.mark.parametrize("scale", ["bf16", "fp32", "e8m0"])
@pytest.mark.parametrize("amplitude", [1e-37, 1e-30, 1e-20, 1.0, 1.4, 1e20, 1e30, 3e37])
def test_the_rms_of_int2_neither_overflows_nor_underflows(amplitude: float, scale: str) -> None:
    values = gaussian(500, 128) * amplitude
    error = round_trip(codecs.get({"codec": "int2", "scale": scale}), values).double() - values.double()
    assert error.norm() / values.double().norm() <= (0.43 if scale == "e8m0" else 0.36)


def test_int2_of_the_largest_and_of_constant_values() -> None:
    values = torch.tensor([[FLT_MAX] * 4, [FLT_MAX, 0.0, 0.0, 0.0], [3.7] * 4, [1e-45] * 4])
    decoded = round_trip(codecs.get("int2"), values)
    assert decoded[0].tolist() == [382.5 / 256 * 2.0**127] * 4  # the largest scale
    assert decoded[1, 0] == 382.5 / 256 * 2.0**127
    assert (decoded[2] / 3.7 - 1).abs().max() < 0.51
    assert decoded[3].abs().max() < 2.0**-126


def test_fp16_scales_of_int2_have_a_range() -> None:
    codec = codecs.get({"codec": "int2", "scale": "fp16"})
    values = gaussian(50, 128)
    assert (round_trip(codec, values) - values).norm() / values.norm() <= 0.36
    assert round_trip(codec, values * 1e-9).abs().max() <= 1.5 * 2.0**-14
    assert round_trip(codec, values * 1e9).abs().max() <= 1.5 * 65504


def test_stochastic_int2_saturates_beyond_its_outer_levels() -> None:
    """There it is biased, as its docstring says: all draws give the outer level."""
    row = torch.tensor([3.0, -3.0] + [0.5, -0.5] * 31)
    codec = stochastic("int2")
    found = torch.stack([codec.decode(codec.encode(row, noise=codecs.Noise(step=i)), 64) for i in range(20)])
    assert (found[:, 0] == found[0].max()).all()
    assert (found[:, 1] == found[0].min()).all()
    assert found[0].max() < 1.2
