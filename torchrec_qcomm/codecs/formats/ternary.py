"""``ternary``: minus the row's maximum, zero, or the maximum, at random; five values in a byte."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from torchrec_qcomm.codecs.checks import check_dim
from torchrec_qcomm.codecs.parts import scales
from torchrec_qcomm.codecs.parts.magnitudes import amax, norm, upward
from torchrec_qcomm.codecs.parts.memory import Scratch
from torchrec_qcomm.codecs.parts.noise import Draw
from torchrec_qcomm.codecs.parts.packing import pack_trits, trit_bytes, unpack_trits
from torchrec_qcomm.codecs.parts.row_values import bound_inputs, finish_bound
from torchrec_qcomm.codecs.rows import RowCodec
from torchrec_qcomm.errors import CodecError, describe


@dataclass(frozen=True, slots=True)
class Ternary(RowCodec):
    """TernGrad: each value becomes 0 or plus or minus the row's maximum, at random and right on average.

    Formula: ``s = max |x|``, rounded up to the scale's format; ``value = sgn(x) * s`` with probability ``|x| / s``, else 0.

    Bytes of a row (ceil(D / 5) + 2 with a BF16 scale): ``five values | ... | s``. A value is 0, 1 or 2 for ``-s``, 0 and ``s``,
    and a byte ``v0 + 3 v1 + 9 v2 + 27 v3 + 81 v4``; values beyond the last are 0.

    Bias: none (probabilities are multiples of 2**-24, rounded up). Zeros and values of magnitude ``s`` never change. Variance
    of a value: ``s |x| - x^2``; of a row: ``s ||x||_1 - ||x||_2^2``. Bound: ``max(|x|, s - |x|)``.

    **On Gaussian rows of 128 values the relative L2 error is about 1.12: worse than sending nothing, though right on average.**
    Use it only where many rows are summed before they count, and never in a forward pass.

    With ``clip``, ``s = min(max |x|, clip * rms)``. The root mean square of the row is its sigma, since gradients are centred
    at 0; so a constant row stays itself. **Clipping is biased**: values beyond ``s`` come back as ``s``. With 2.5 the error on
    Gaussian rows is 1.00, still no better than sending nothing (without ``clip``, ``s`` is about 2.7 sigmas there); it helps
    rows with outliers.

    ``s`` is from 2**-126 to 2**127 (FP16: 2**-14 to 65504). Values beyond saturate. Rows below are right on average, with an
    error up to the smallest ``s``. A row with a NaN or Inf decodes to NaN in every column.

    Args:
        clip: None, or a number > 0 of sigmas.
        scale: ``bf16``, ``fp32``, ``fp16`` or ``e8m0``.

    Source: "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning", arXiv 1705.07878.
    """

    clip: float | None = None
    scale: str = "bf16"
    name: ClassVar[str] = "ternary"

    def __post_init__(self) -> None:
        clip = self.clip
        if clip is not None:
            number = isinstance(clip, int | float) and not isinstance(clip, bool)
            if not (number and 0 < clip < math.inf):
                raise CodecError(
                    describe(f"codec {self.name}, clip", "bad value", got=clip, allowed="None, or a number > 0 of sigmas")
                )
            object.__setattr__(self, "clip", float(clip))
        scales.check_format(self.name, self.scale)

    @property
    def stochastic(self) -> bool:
        return True

    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int:
        check_dim(self, dim)
        return trit_bytes(dim) + scales.FORMATS[self.scale]

    def _scale(self, x: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        scale = amax(x, scratch)
        if self.clip is not None:
            limit = norm(x, 2, scratch).mul_(self.clip / math.sqrt(x.shape[-1])).clamp_(max=2.0**127)
            scale = torch.minimum(scale, upward(limit))
        return scales.rounded(scale, self.scale)

    def _encode_rows(self, x: torch.Tensor, rows: torch.Tensor, scratch: Scratch, draw: Draw | None) -> None:
        assert draw is not None
        dim, shape, nbytes = x.shape[-1], tuple(x.shape), trit_bytes(x.shape[-1])
        scale = self._scale(x, scratch)
        scales.write(scale, self.scale, rows[..., nbytes:], scratch)
        # A product of s with u < 1 rounds to less than s, so a value of s never changes.
        threshold = draw.uniform(shape, scratch).mul_(scale)
        codes = scratch.take("codes", (*shape[:-1], 5 * nbytes), torch.uint8)
        side = scratch.take("side", shape, torch.bool)
        codes[..., :dim].copy_(torch.gt(x, threshold, out=side))
        torch.lt(x, threshold.neg_(), out=side)
        codes[..., :dim].add_(1).sub_(side.view(torch.uint8))
        codes[..., dim:].zero_()
        pack_trits(codes, rows[..., :nbytes], scratch)

    def _decode_rows(self, rows: torch.Tensor, x: torch.Tensor, scratch: Scratch) -> None:
        nbytes = trit_bytes(x.shape[-1])
        scale = scales.read(rows[..., nbytes:], self.scale, scratch)
        x.copy_(unpack_trits(rows[..., :nbytes], scratch)[..., : x.shape[-1]]).sub_(1.0).mul_(scale)

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        x, low, high = bound_inputs(values)
        scale, size = self._scale(x.float(), Scratch(x.device)).double(), x.abs()
        bound = torch.where(size >= scale, size - scale, torch.maximum(size, scale - size))
        return finish_bound(torch.where(x == 0, 0.0, bound), low, high)
