"""What each codec costs and how much error it makes, measured on a sample of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torchrec_qcomm.codecs.base import Codec
from torchrec_qcomm.codecs.parts.noise import Noise
from torchrec_qcomm.codecs.registry import get, names
from torchrec_qcomm.codecs.spec import CodecLike
from torchrec_qcomm.codecs.speed import codec_speed
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
"""Measured too, besides every codec with its defaults."""

_ENCODINGS = 64
"""How often a stochastic codec encodes a sample, to find its bias."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One codec on one sample.

    Attributes:
        name: the codec's short name.
        row_bytes: wire bytes of a row.
        ratio: FP32 bytes over wire bytes.
        error: ``||decoded - x|| / ||x||`` over the sample, row by row in units of the row's size (root mean square).
        worst: the largest error of a value, as a share of the largest magnitude of its row.
        bias: the mean of ``(decoded - x) * sign(x)`` over the mean of ``|x|``. Below zero, values shrink. For a stochastic
            codec it is taken over 64 encodings.
        cosine: of the angle between decoded and original, mean over rows.
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
        sample: FP32 ``[rows, dim]``, finite, no row of zeros only.
        codecs: by default `likes`.
        seconds: to spend on timing each direction of each codec; 0 leaves speeds at NaN.
    """
    return [_figures(get(like), sample, seconds) for like in (likes() if codecs is None else codecs)]


def _figures(codec: Codec, sample: torch.Tensor, seconds: float) -> Figures:
    dim = sample.shape[1]
    noise = Noise(site="survey")
    decoded = codec.decode(codec.encode(sample, noise=noise), dim).double()
    exact = sample.double()
    size = exact.norm(dim=-1)
    lost = (decoded - exact).norm(dim=-1)
    mean = decoded if not codec.stochastic else _mean(codec, sample)
    encode, decode = codec_speed(codec, sample, seconds) if seconds else (float("nan"),) * 2
    return Figures(
        name=str(codec.spec),
        row_bytes=codec.row_bytes(dim),
        ratio=4 * dim / codec.row_bytes(dim),
        error=float((lost / size).square().mean().sqrt()),
        worst=float(((decoded - exact).abs() / exact.abs().amax(-1, keepdim=True)).max()),
        bias=float(((mean - exact) * exact.sign()).sum() / exact.abs().sum()),
        cosine=float(torch.nn.functional.cosine_similarity(decoded, exact).mean()),
        encode=encode,
        decode=decode,
    )


def _mean(codec: Codec, sample: torch.Tensor) -> torch.Tensor:
    """What a stochastic codec decodes to, on average."""
    total = torch.zeros(sample.shape, dtype=torch.float64)
    for step in range(_ENCODINGS):
        total += codec.decode(codec.encode(sample, noise=Noise(step=step, site="survey")), sample.shape[1])
    return total / _ENCODINGS
