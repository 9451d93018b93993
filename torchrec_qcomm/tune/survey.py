"""What each codec costs and how much error it makes, measured on a sample of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import fbgemm_gpu  # noqa: F401  (registers torch.ops.fbgemm)
import torch

from torchrec_qcomm.codecs.base import Codec, CodecLike
from torchrec_qcomm.codecs.parts.noise import Noise
from torchrec_qcomm.codecs.registry import get, names
from torchrec_qcomm.errors import CodecError, describe

DISTRIBUTIONS = ("normal", "laplace", "zipf-rows")

VARIANTS: tuple[CodecLike, ...] = (
    {"codec": "int8", "rounding": "stochastic"},
    {"codec": "int4", "rounding": "stochastic"},
    {"codec": "qsgd", "bits": 8},
    {"codec": "qsgd", "bits": 8, "norm": "max"},
    {"codec": "qsgd", "bits": 4, "norm": "max"},
    {"codec": "qsgd", "bits": 2},
    {"codec": "qsgd", "bits": 2, "norm": "max"},
    {"codec": "natural", "bits": 4},
    {"codec": "ternary", "clip": 2.5},
)
"""Shown in addition to every codec with its defaults."""

_ENCODINGS = 64
"""How often a stochastic codec encodes, to measure its bias."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One codec on one sample.

    Attributes:
        name: the codec's short name.
        row_bytes: wire bytes of a row.
        ratio: FP32 bytes over wire bytes.
        error: ``||decoded - x|| / ||x||`` over the sample, row by row in units of the row's size (root mean square).
        worst: the largest error of a value, as a share of the largest magnitude of its row.
        bias: the mean of ``(decoded - x) * sign(x)`` over the mean of ``|x|``: below zero, values shrink. For a stochastic
            codec, that of the mean of 64 encodings.
        cosine: of the angle between decoded and original row, as a mean over rows.
        encode, decode: GB/s of FP32 values.
    """

    name: str
    row_bytes: int
    ratio: float
    error: float
    worst: float
    bias: float
    cosine: float
    encode: float
    decode: float

    @property
    def useless(self) -> bool:
        """Whether the error is larger than that of sending nothing."""
        return self.error > 1


def sample_of(distribution: str, rows: int, dim: int, seed: int = 0) -> torch.Tensor:
    """Random FP32 rows: ``normal``; ``laplace``; or ``zipf-rows``, normal rows whose sizes fall off as ``1 / rank``.

    Raises:
        CodecError: no such distribution.
    """
    generator = torch.Generator().manual_seed(seed)
    if distribution == "laplace":
        uniform = torch.rand(rows, dim, generator=generator).clamp_(min=1e-7)
        return uniform.log_().neg_() * (torch.randint(0, 2, (rows, dim), generator=generator) * 2 - 1)
    normal = torch.randn(rows, dim, generator=generator)
    if distribution == "normal":
        return normal
    if distribution == "zipf-rows":
        return normal / torch.arange(1, rows + 1).unsqueeze(1)
    raise CodecError(describe("sample", "unknown distribution", got=distribution, allowed=DISTRIBUTIONS))


def likes() -> list[CodecLike]:
    """Every codec with its defaults, and the variants."""
    return [*names(), *VARIANTS]


def survey(sample: torch.Tensor, codecs: Sequence[CodecLike] | None = None, seconds: float = 0.2) -> list[Figures]:
    """Measure codecs on a sample.

    Args:
        sample: FP32 ``[rows, dim]``, finite; no row is all zeros.
        codecs: by default `likes`.
        seconds: to spend on timing encode, and on timing decode, of each codec; 0 leaves speeds at NaN.
    """
    return [_figures(get(like), sample, seconds) for like in (likes() if codecs is None else codecs)]


def copy_speed(sample: torch.Tensor, seconds: float = 0.2) -> float:
    """GB/s of a plain copy of the sample's values."""
    out = torch.empty_like(sample)
    return _speed(lambda: out.copy_(sample), sample, seconds)


def fbgemm_speeds(sample: torch.Tensor, seconds: float = 0.2) -> dict[int, tuple[float, float]]:
    """``{bits: (quantize, dequantize)}`` in GB/s of FP32 values, of FBGEMM's fused row-wise kernels that take this dim."""
    ops, found = torch.ops.fbgemm, {}
    eight = ops.FloatToFused8BitRowwiseQuantized(sample)
    found[8] = (
        _speed(lambda: ops.FloatToFused8BitRowwiseQuantized(sample), sample, seconds),
        _speed(lambda: ops.Fused8BitRowwiseQuantizedToFloat(eight), sample, seconds),
    )
    for bits in (4, 2):
        if sample.shape[1] * bits % 16:
            continue  # its rows must have an even number of bytes
        rows = ops.FloatToFusedNBitRowwiseQuantizedSBHalf(sample, bits)

        def quantize(bits: int = bits) -> torch.Tensor:
            return ops.FloatToFusedNBitRowwiseQuantizedSBHalf(sample, bits)

        def dequantize(bits: int = bits, rows: torch.Tensor = rows) -> torch.Tensor:
            return ops.FusedNBitRowwiseQuantizedSBHalfToFloat(rows, bits)

        found[bits] = (_speed(quantize, sample, seconds), _speed(dequantize, sample, seconds))
    return found


def _figures(codec: Codec, sample: torch.Tensor, seconds: float) -> Figures:
    dim = sample.shape[1]
    noise = Noise(site="survey")
    data, out = codec.encode(sample, noise=noise), torch.empty_like(sample)
    decoded = codec.decode(data, dim).double()
    exact = sample.double()
    size = exact.norm(dim=-1)
    lost = (decoded - exact).norm(dim=-1)
    mean = decoded if not codec.stochastic else _mean(codec, sample)
    return Figures(
        name=str(codec.spec),
        row_bytes=codec.row_bytes(dim),
        ratio=4 * dim / codec.row_bytes(dim),
        error=float((lost / size).square().mean().sqrt()),
        worst=float(((decoded - exact).abs() / exact.abs().amax(-1, keepdim=True)).max()),
        bias=float(((mean - exact) * exact.sign()).sum() / exact.abs().sum()),
        cosine=float(torch.nn.functional.cosine_similarity(decoded, exact).mean()),
        encode=_speed(lambda: codec.encode(sample, out=data, noise=noise), sample, seconds),
        decode=_speed(lambda: codec.decode(data, dim, out=out), sample, seconds),
    )


def _mean(codec: Codec, sample: torch.Tensor) -> torch.Tensor:
    """What a stochastic codec decodes to, on average."""
    total = torch.zeros(sample.shape, dtype=torch.float64)
    for step in range(_ENCODINGS):
        total += codec.decode(codec.encode(sample, noise=Noise(step=step, site="survey")), sample.shape[1])
    return total / _ENCODINGS


def _speed(work: Callable[[], object], sample: torch.Tensor, seconds: float) -> float:
    """GB/s by the median of at least three runs."""
    if not seconds:
        return float("nan")
    work()
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return sample.numel() * 4 / median(times) / 1e9
