"""``int4``: 16 even levels between the row's minimum and maximum, two codes a byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from torchrec_qcomm.codecs.base import check_dim
from torchrec_qcomm.codecs.rows import RowCodec, Scratch, bound_inputs, extremes, finish_bound, half_range, load, spoil, store

_LIMIT = 2.0**126
_SMALLEST_SCALE = 2.0**-126
_ROUND = 2.0**23  # added to 0..15 it leaves the rounded integer in the lowest bits


@dataclass(frozen=True, slots=True)
class Int4(RowCodec):
    """16 even levels from the row's minimum to its maximum, scale and minimum in BF16.

    Formula: ``minimum = min`` rounded down to BF16, ``scale = (max - minimum) / 15`` rounded up to BF16, ``code = round((x -
    minimum) / scale)``, ``value = minimum + code * scale``; nearest, ties to even. The codes come from the rounded pair, so its
    rounding widens the step and adds no error of its own. FBGEMM stores FP16 here, which overflows above 65504 and loses
    amplitudes under 6e-8; BF16 takes the same two bytes.

    Bytes of a row (ceil(D / 2) + 4): ``codes 0 and 1 | codes 2 and 3 | ... | scale, 2 bytes | minimum, 2 bytes``,
    little-endian. The even column is in the low nibble; with odd D the last high nibble is 0.

    Bound: ``scale / 2`` with the formula above, plus FP32 roundings. In a near-constant row far from zero the BF16 minimum
    decides: up to ``2**-7 * |min| / 30``. Bias: none beyond the ties. Values beyond ``2**126`` (8.5e37) saturate there, so that
    no level overflows; the scale is at least ``2**-126``, so rows with a range below 1.8e-37 have an absolute error,
    ``2**-127``. A row with a NaN or Inf decodes to NaN in every column (scale and minimum are NaN).

    There is one implementation: FBGEMM's 4-bit kernels compute scale and minimum themselves, in FP16, and refuse odd widths.
    """

    name: ClassVar[str] = "int4"

    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int:
        check_dim(self, dim)
        return (dim + 1) // 2 + 4

    def _encode_rows(self, x: torch.Tensor, rows: torch.Tensor, scratch: Scratch) -> None:
        dim, half = x.shape[-1], rows.shape[-1] - 4
        scale, minimum = _header(*extremes(x, scratch))
        store(rows[..., half:], torch.cat([scale, minimum], dim=-1), torch.bfloat16, scratch, "header")

        levels = torch.sub(x, minimum, out=scratch.take("levels", tuple(x.shape)))
        levels.mul_(scale.reciprocal()).clamp_(0.0, 15.0).add_(_ROUND)
        codes = scratch.take("codes", (*x.shape[:-1], 2 * half), torch.uint8)
        codes[..., :dim].copy_(levels.view(torch.int32))  # keeps the lowest byte, which is 0 in a NaN too
        codes[..., dim:].zero_()
        pairs = codes.view(torch.int16)  # even code | odd code << 8
        packed = scratch.take("packed", tuple(pairs.shape), torch.int16)
        torch.bitwise_right_shift(pairs, 4, out=packed)
        rows[..., :half].copy_(packed.bitwise_or_(pairs))  # keeps the lower byte: even code | odd code << 4

    def _decode_rows(self, rows: torch.Tensor, x: torch.Tensor, scratch: Scratch) -> None:
        dim, half = x.shape[-1], rows.shape[-1] - 4
        header = load(rows[..., half:], torch.bfloat16, scratch, "header").float()
        packed = scratch.take("packed", (*x.shape[:-1], half), torch.int16).copy_(rows[..., :half])
        pairs = scratch.take("pairs", tuple(packed.shape), torch.int16)
        torch.bitwise_left_shift(packed, 4, out=pairs)
        codes = pairs.bitwise_or_(packed).bitwise_and_(0x0F0F).view(torch.uint8)
        x.copy_(codes[..., :dim]).mul_(header[..., :1]).add_(header[..., 1:])

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        x, low, high = bound_inputs(values)
        scale, minimum = (t.double() for t in _header(low.float(), high.float()))
        excess = (x.abs() - _LIMIT).clamp(min=0)
        fp32 = x.abs() * 2.0**-22 + scale * 2.0**-18  # 15 scales, rounded four times
        exact = (high == low) & (minimum == low)
        return finish_bound(torch.where(exact, 0.0, scale / 2 + fp32) + excess, low, high)


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
