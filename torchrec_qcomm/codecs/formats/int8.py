"""``int8``: 256 even levels between the row's minimum and maximum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from torchrec_qcomm.codecs.checks import check_dim
from torchrec_qcomm.codecs.parts.memory import Scratch, read_as, write_as
from torchrec_qcomm.codecs.parts.noise import Draw
from torchrec_qcomm.codecs.parts.rounding import Rounded, level_tolerance, to_integers
from torchrec_qcomm.codecs.parts.row_values import bound_inputs, extremes, finish_bound, half_range, spoil

_EPSILON = 1e-8  # FBGEMM adds it to the range on a CPU; so does the reference, so that codes are equal


@dataclass(frozen=True, slots=True)
class Int8(Rounded):
    """256 even levels from the row's minimum to its maximum, scale and minimum in FP32.

    Formula: ``scale = (max - min) / 255``, ``code = round((x - min) / scale)``, ``value = min + code * scale``; nearest, ties
    to even, or stochastic, to one of the two levels around. It is computed on ``x * 2**k``, which is exact. ``k`` is chosen per
    row so that the range is ``2**20`` or more and does not overflow; FBGEMM's epsilon on the range then has no effect.

    Bytes of a row (D + 8): ``code 0 | ... | code D-1 | scale, 4 bytes | minimum, 4 bytes``; FP32, little-endian, no padding.
    This is FBGEMM's fused 8-bit row-wise layout, without the padding to a multiple of 4 that its CUDA kernels put before the
    scale.

    Bound: ``range / 510``, plus FP32 roundings of ``range * 2**-20`` and ``|x| * 2**-23``. Stochastic: ``range / 255`` and the
    same roundings. Bias: none but at ties; stochastic: none but for those roundings (a value that is within them of a level
    counts as the level). A constant row is exact. Nothing saturates: if the range is beyond the largest FP32, the scale is
    reduced by ``2**-22`` of itself, so that no value decodes to Inf. In rows whose range is below 1e-35 the error is absolute,
    about ``2**-140``. A row with a NaN or Inf decodes to NaN in every column (scale and minimum are NaN).

    Variance, stochastic: ``scale**2 f (1 - f)`` with ``f`` the fraction of ``(x - min) / scale``; at most ``(range / 510)**2``.

    Args:
        rounding: ``nearest`` or ``stochastic``.

    Source: FBGEMM, ``FloatToFused8BitRowwiseQuantized``.
    """

    name: ClassVar[str] = "int8"

    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int:
        check_dim(self, dim)
        return dim + 8

    def _encode_rows(self, x: torch.Tensor, rows: torch.Tensor, scratch: Scratch, draw: Draw | None) -> None:
        low, high = extremes(x, scratch)
        half = half_range(low, high)
        # The size is that of the range, unless the row is so nearly constant that its values would overflow at a range of
        # 2**20.
        size = half.mul(0.5).add_(low.abs_(), alpha=2.0**-26)
        power = size.view(torch.int32).bitwise_and_(0x7F800000).view(torch.float32)  # the power of two at or below the size
        # Rows are only enlarged, so that a small minimum survives, unless they would overflow.
        huge = torch.threshold(power, 2.0**100, 0.0)
        power = spoil(torch.maximum(power.clamp_(2.0**-106, 2.0**18), huge), half)
        scaled = scratch.take("scaled", tuple(x.shape))
        torch.mul(x, power.reciprocal().mul_(2.0**18), out=scaled)
        self._quantize(scaled, rows, scratch, draw)

        down = power.mul_(2.0**-18)
        shave = torch.threshold(down, 2.0**106, 0.0)  # only for a range of 2**127 or more
        factors = torch.cat([down.sub(shave, alpha=2.0**-22), down], dim=-1)
        tail = rows[..., x.shape[-1] :]
        write_as(tail, read_as(tail, torch.float32, scratch, "read").mul(factors), torch.float32, scratch, "write")

    def _quantize(self, scaled: torch.Tensor, rows: torch.Tensor, scratch: Scratch, draw: Draw | None = None) -> None:
        """Codes, scale and minimum of ``scaled`` (contiguous, overwritten) into ``rows``."""
        dim = scaled.shape[-1]
        low, high = extremes(scaled, scratch)
        tail = torch.cat([(high - low) / 255.0, low], dim=-1)
        span = high - low
        # A true division: `255.0 / tensor` would be a reciprocal and a product, with two roundings.
        inverse = torch.full_like(span, 255.0).div_(span + _EPSILON)
        steps = scaled.sub_(low).mul_(inverse)
        if draw is None:
            steps.round_()
        else:
            to_integers(steps, level_tolerance(low, high, inverse, 255), draw, scratch)
        codes = scratch.take("codes", tuple(scaled.shape), torch.int32).copy_(steps)
        rows[..., :dim].copy_(codes)  # through int32, since torch's cast from float to uint8 is not vectorised
        write_as(rows[..., dim:], tail, torch.float32, scratch, "write")

    def _decode_rows(self, rows: torch.Tensor, x: torch.Tensor, scratch: Scratch) -> None:
        dim = x.shape[-1]
        tail = read_as(rows[..., dim:], torch.float32, scratch, "tail").double()
        # FP64 gives what the kernel's fused multiply-add gives: the product is exact, and cannot overflow.
        wide = scratch.take("wide", tuple(x.shape), torch.float64).copy_(rows[..., :dim])
        x.copy_(wide.mul_(tail[..., :1]).add_(tail[..., 1:]))

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        x, low, high = bound_inputs(values)
        bound = (high - low) * (self._steps / 255 + 2.0**-20) + x.abs() * 2.0**-23 + 2.0**-140
        return finish_bound(torch.where(high == low, 0.0, bound), low, high)
