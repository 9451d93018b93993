"""``int4``: 16 even levels between the row's minimum and maximum, two codes a byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from torchrec_qcomm.codecs.checks import check_dim
from torchrec_qcomm.codecs.parts.memory import Scratch, read_as, write_as
from torchrec_qcomm.codecs.parts.noise import Draw
from torchrec_qcomm.codecs.parts.packing import pack, packed_bytes, unpack
from torchrec_qcomm.codecs.parts.rounding import Rounded, level_tolerance, to_integers
from torchrec_qcomm.codecs.parts.row_values import bound_inputs, extremes, finish_bound, half_range, spoil

_LIMIT = 2.0**126
_SMALLEST_SCALE = 2.0**-126
_ROUND = 2.0**23  # added to 0..15, it leaves the rounded integer in the lowest bits


@dataclass(frozen=True, slots=True)
class Int4(Rounded):
    """16 even levels from the row's minimum to its maximum, scale and minimum in BF16.

    Formula: ``minimum = min`` rounded down to BF16, ``scale = (max - minimum) / 15`` rounded up to BF16, ``code = round((x -
    minimum) / scale)``, ``value = minimum + code * scale``; nearest, ties to even, or stochastic, to one of the two levels
    around. The codes are computed from the rounded pair. So rounding the pair widens the step and adds no error of its own.
    FBGEMM stores FP16 here, which overflows above 65504 and loses amplitudes under 6e-8; BF16 takes the same two bytes.

    Bytes of a row (ceil(D / 2) + 4): ``codes 0 and 1 | codes 2 and 3 | ... | scale, 2 bytes | minimum, 2 bytes``,
    little-endian. The even column is in the low nibble; with odd D the last high nibble is 0.

    Bound: ``scale / 2`` with the formula above, plus FP32 roundings. In a near-constant row far from zero the BF16 minimum
    decides: up to ``2**-7 * |min| / 30``. Stochastic: twice that. Bias: none but at ties; stochastic: none but for FP32
    roundings (a value that is within these roundings of a level counts as the level). Values beyond ``2**126`` (8.5e37)
    saturate there, so that no level overflows. The scale is at least ``2**-126``, so rows with a range below 1.8e-37 have an
    absolute error, ``2**-127``. A row with a NaN or Inf decodes to NaN in every column (scale and minimum are NaN).

    Variance, stochastic: ``scale**2 f (1 - f)`` with ``f`` the fraction of ``(x - minimum) / scale``; at most ``scale**2 / 4``.

    Args:
        rounding: ``nearest`` or ``stochastic``.

    FBGEMM's 4-bit kernels are not used: they compute scale and minimum themselves, in FP16, and refuse odd widths.
    """

    name: ClassVar[str] = "int4"

    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int:
        check_dim(self, dim)
        return packed_bytes(dim, 4) + 4

    def _encode_rows(self, x: torch.Tensor, rows: torch.Tensor, scratch: Scratch, draw: Draw | None) -> None:
        dim, half = x.shape[-1], rows.shape[-1] - 4
        low, high = extremes(x, scratch)
        scale, minimum = _header(low, high)
        write_as(rows[..., half:], torch.cat([scale, minimum], dim=-1), torch.bfloat16, scratch, "tail")

        levels = torch.sub(x, minimum, out=scratch.take("levels", tuple(x.shape)))
        inverse = scale.reciprocal()
        levels.mul_(inverse).clamp_(0.0, 15.0)
        if draw is not None:
            to_integers(levels, level_tolerance(low, high, inverse, 15), draw, scratch)
        levels.add_(_ROUND)
        codes = scratch.take("codes", (*x.shape[:-1], 2 * half), torch.uint8)
        codes[..., :dim].copy_(levels.view(torch.int32))  # keeps the lowest byte, which is 0 in a NaN too
        codes[..., dim:].zero_()
        pack(codes, 4, rows[..., :half], scratch)

    def _decode_rows(self, rows: torch.Tensor, x: torch.Tensor, scratch: Scratch) -> None:
        dim, half = x.shape[-1], rows.shape[-1] - 4
        tail = read_as(rows[..., half:], torch.bfloat16, scratch, "tail").float()
        codes = unpack(rows[..., :half], 4, scratch)
        x.copy_(codes[..., :dim]).mul_(tail[..., :1]).add_(tail[..., 1:])

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        x, low, high = bound_inputs(values)
        scale, minimum = (t.double() for t in _header(low.float(), high.float()))
        excess = (x.abs() - _LIMIT).clamp(min=0)
        fp32 = x.abs() * 2.0**-22 + scale * 2.0**-18  # 15 scales, rounded four times
        exact = (high == low) & (minimum == low)
        return finish_bound(torch.where(exact, 0.0, scale * self._steps + fp32) + excess, low, high)


def _header(low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and minimum of every row, in FP32 but exact in BF16; NaN for a row that is not finite."""
    witness = half_range(low, high)
    low, high = low.clamp(-_LIMIT, _LIMIT), high.clamp(-_LIMIT, _LIMIT)
    bits = low.view(torch.int32)
    # Down is away from zero for negative values, whose sign bit makes bits >> 31 all ones.
    minimum = (bits + ((bits >> 31) & 0xFFFF)).bitwise_and_(~0xFFFF).view(torch.float32)
    bits = ((high - minimum) / 15.0).clamp_(min=_SMALLEST_SCALE).view(torch.int32)
    scale = (bits + 0xFFFF).bitwise_and_(~0xFFFF).view(torch.float32)
    return spoil(scale, witness), spoil(minimum, witness)
