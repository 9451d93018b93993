"""How much error there is: thresholds, bounds that are tight, and the usual bugs that no training run would show."""

from __future__ import annotations

import pytest
import torch

from tests.codecs.checks.cases import BIASED, FLT_MAX, NOISE, gaussian
from torchrec_qcomm import codecs
from torchrec_qcomm.codecs import Codec

VALUES = gaussian(20000, 128, seed=3)  # enough for some to lie within rounding errors of a tie


def round_trip(codec: Codec, values: torch.Tensor) -> torch.Tensor:
    return codec.decode(codec.encode(values, noise=NOISE), values.shape[-1])


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("fp16", 2.2e-4),
        ("bf16", 1.7e-3),
        ("int8", 0.007),
        ("fp8_e4m3", 0.028),
        ("fp8_e5m2", 0.056),
        ("int4", 0.105),
        ("lut4", 0.1),
        ("lut2", 0.35),
        ("mxfp4", 0.118),
        ("mxfp8", 0.028),
        ("int2", 0.36),
    ],
)
def test_relative_error_of_gaussian_rows(name: str, limit: float) -> None:
    for backend in codecs.backends(name):
        error = (round_trip(codecs.get(name, backend), VALUES) - VALUES).norm() / VALUES.norm()
        assert limit * 0.8 <= error <= limit


LOSSY = [(n, b) for n in codecs.names() for b in codecs.backends(n) if n not in ("none", "fp32")]


@pytest.mark.parametrize(("name", "backend"), LOSSY)
def test_the_bound_is_reached(name: str, backend: str) -> None:
    """A bound with slack would let half the precision go unnoticed."""
    codec = codecs.get(name, backend)
    ratio = (round_trip(codec, VALUES) - VALUES).abs() / codec.error_bound(VALUES)
    assert 0.97 <= ratio.max() <= 1.0


@pytest.mark.parametrize(("name", "backend"), LOSSY)
def test_there_is_no_bias(name: str, backend: str) -> None:
    """Rounding to nearest: errors cancel. Truncation would leave half a step, 50 times this limit.

    One bit cannot: small values grow.
    """
    codec = codecs.get(name, backend)
    error = (round_trip(codec, VALUES) - VALUES).double() / codec.error_bound(VALUES).double()
    assert error.mean().abs() < 0.01
    # Uneven levels leave a little, as the density of the values falls within a step; and int2's, the best even ones for squares
    # of errors, some growth below and shrinking above them.
    limit = {"int2": 0.08, "mxfp4": 0.04, "lut4": 0.04, "lut2": 0.04}.get(name, 0.02)
    assert ((error * VALUES.sign()).mean().abs() < limit) == (name not in BIASED)


@pytest.mark.parametrize(("name", "levels"), [("int8", 255), ("int4", 15)])
def test_truncation_and_a_scale_per_tensor_break_the_bound(name: str, levels: int) -> None:
    codec = codecs.get(name)
    bound = codec.error_bound(VALUES)
    low, high = VALUES.amin(-1, keepdim=True), VALUES.amax(-1, keepdim=True)
    scale = (high - low) / levels
    truncated = low + ((VALUES - low) / scale).floor() * scale
    assert ((truncated - VALUES).abs() > bound).float().mean() > 0.4
    per_tensor = (VALUES.max() - VALUES.min()) / levels
    shared = VALUES.min() + ((VALUES - VALUES.min()) / per_tensor).round() * per_tensor
    assert ((shared - VALUES).abs() > bound).float().mean() > 0.1


@pytest.mark.parametrize(("name", "mantissa"), [("fp8_e4m3", 3), ("fp8_e5m2", 2), ("bf16", 7), ("fp16", 10)])
def test_one_mantissa_bit_less_breaks_the_bound(name: str, mantissa: int) -> None:
    fraction, exponent = torch.frexp(VALUES)
    coarse = torch.ldexp((fraction * 2.0**mantissa).round() / 2.0**mantissa, exponent)
    assert ((coarse - VALUES).abs() > codecs.get(name).error_bound(VALUES)).float().mean() > 0.3


def test_a_large_row_does_not_flatten_a_small_one() -> None:
    values = torch.stack([torch.full((128,), 1e4), torch.full((128,), 1e-3)])
    for name, relative in (("fp8_e4m3", 0.0625), ("fp8_e5m2", 0.125), ("int8", 1e-6), ("int4", 1e-3), ("bf16", 2.0**-8)):
        assert ((round_trip(codecs.get(name), values) - values).abs() <= relative * values).all(), name


def test_int8_of_the_widest_range() -> None:
    for backend in codecs.backends("int8"):
        values = torch.tensor([[-1e30, 1e30, 3e29], [-FLT_MAX, FLT_MAX, 0.0], [FLT_MAX * 0.3, FLT_MAX, -FLT_MAX]])
        decoded = round_trip(codecs.get("int8", backend), values).double()
        spread = values.double().amax(-1, keepdim=True) - values.double().amin(-1, keepdim=True)
        assert ((decoded - values.double()).abs() <= spread / 509).all()


def test_constant_rows() -> None:
    values = torch.tensor([3.7, -3.7, 1e-30, 1e30, 65504.0, 1e-7]).unsqueeze(1).expand(6, 33)
    for backend in codecs.backends("int8"):
        assert torch.equal(round_trip(codecs.get("int8", backend), values), values)
    assert ((round_trip(codecs.get("int4"), values) - values).abs() <= 2.0**-7 / 30 * 1.01 * values.abs()).all()


def test_a_loss_scale_saves_small_gradients() -> None:
    values = gaussian(20, 64) * 1e-7
    plain, scaled = codecs.get("fp16"), codecs.get({"codec": "fp16", "loss_scale": 2.0**20})
    assert (round_trip(plain, values) - values).norm() > 0.1 * values.norm()
    assert (round_trip(scaled, values) - values).norm() < 3e-4 * values.norm()
    large = torch.full((1, 4), 6e4)
    assert torch.equal(round_trip(scaled, large), torch.full((1, 4), 65504 / 2.0**20))  # and loses large ones: it saturates


def test_encoding_what_was_decoded_keeps_it() -> None:
    # A root mean square, or a rounded minimum, is another one the second time.
    slack = {"int4": 0.16, "int2": 0.4, "lut4": 0.15, "lut2": 0.25}
    for name in codecs.names():
        codec = codecs.get(name)
        if codec.stochastic:
            continue
        once = round_trip(codec, VALUES[:100])
        twice = round_trip(codec, once)
        assert ((twice - once).abs() <= 0.02 * codec.error_bound(VALUES[:100]) + slack.get(name, 0.0)).all(), name


@pytest.mark.parametrize("amplitude", [1e-38, 1e-30, 1e-12, 1e-8, 1e-3, 1.0, 1e5, 1e30, 1e38])
def test_a_faster_backend_equals_the_reference(amplitude: float) -> None:
    for name in codecs.names():
        for backend in codecs.backends(name)[1:]:
            slow, fast = codecs.get(name, "reference"), codecs.get(name, backend)
            for dim in (1, 5, 128):
                values = gaussian(4000, dim, seed=dim) * amplitude
                values[::2] += 3 * amplitude
                values = values.clamp(-FLT_MAX, FLT_MAX)
                data, other = slow.encode(values), fast.encode(values)
                differ = (data[:, :dim].int() - other[:, :dim].int()).abs()
                assert differ.max() <= 1
                assert differ.sum() <= max(1, 1e-6 * differ.numel())
                assert torch.equal(data[:, dim:], other[:, dim:])
                a, b = slow.decode(data, dim), fast.decode(data, dim)
                ulp = torch.nextafter(a.abs(), torch.full_like(a, torch.inf)) - a.abs()
                assert ((a - b).abs() <= ulp).all()
