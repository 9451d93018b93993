"""Formats by FBGEMM's kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import fbgemm_gpu  # noqa: F401  (registers torch.ops.fbgemm)
import torch

from torchrec_qcomm.codecs.formats.int8 import Int8
from torchrec_qcomm.codecs.parts.memory import Scratch, read_as, write_as
from torchrec_qcomm.codecs.parts.noise import Draw
from torchrec_qcomm.codecs.parts.row_values import finite_amax


@dataclass(frozen=True, slots=True)
class Int8Fbgemm(Int8):
    """``int8`` by FBGEMM's fused row-wise kernels, on CPU and CUDA; the bytes are those of the reference.

    Its faults are kept out: the epsilon (1e-8 on CPU, 1e-20 on CUDA) and the overflow of the range by the power of two per row,
    the NaN that becomes the row's minimum by spoiling the scale of non-finite rows, and CUDA's padding by stripping it. On a
    CPU one power of two serves a whole chunk if nothing in it is special, which gives the same bytes in fewer passes. The
    kernels round to nearest: stochastic codes are the reference's.
    """

    def _encode_rows(self, x: torch.Tensor, rows: torch.Tensor, scratch: Scratch, draw: Draw | None) -> None:
        amax = finite_amax(x) if draw is None else None
        # A power of 2**10 or more: enlarging is exact for every row, and no range is so small that its 255th part becomes 0.
        if amax is not None and 2.0**-60 <= amax <= 2.0**50:
            power = 2.0 ** (60 - math.frexp(amax)[1])
            scaled = torch.mul(x, power, out=scratch.take("scaled", tuple(x.shape)))
            self._quantize(scaled, rows, scratch)
            tail = rows[..., x.shape[-1] :]
            fields = read_as(tail, torch.float32, scratch, "read")
            scales = fields[..., 0]
            # With a range of half or more the epsilon is rounded away; scales near the smallest FP32 have a clamped power of
            # two of their own in the row-wise way; a constant row has a range of exactly 0.
            if not ((scales > 0) & (scales < max(2.0**-9, power * 2.0**-110))).any():
                write_as(tail, fields.mul(1 / power), torch.float32, scratch, "write")
                return
        Int8._encode_rows(
            self, x, rows, scratch, draw
        )  # a slotted dataclass is a new class, which plain `super()` does not know

    def _quantize(self, scaled: torch.Tensor, rows: torch.Tensor, scratch: Scratch, draw: Draw | None = None) -> None:
        if draw is not None:
            return Int8._quantize(self, scaled, rows, scratch, draw)
        flat = scaled.view(-1, scaled.shape[-1])
        if scaled.device.type != "cpu":
            dim = flat.shape[1]
            coded = torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized(flat)
            rows[..., :dim].copy_(coded[:, :dim].view(*rows.shape[:-1], dim))
            rows[..., dim:].copy_(coded[:, -8:].view(*rows.shape[:-1], 8))
            return
        # The kernel writes rows without looking at strides.
        direct = rows.is_contiguous()
        target = rows if direct else scratch.take("coded", tuple(rows.shape), torch.uint8)
        torch.ops.fbgemm.FloatToFused8BitRowwiseQuantizedOut(target.view(-1, rows.shape[-1]), flat)
        if not direct:
            rows.copy_(target)

    def _decode_rows(self, rows: torch.Tensor, x: torch.Tensor, scratch: Scratch) -> None:
        dim, width = x.shape[-1], rows.shape[-1]
        if rows.device.type != "cpu":
            padding = -dim % 4
            padded = rows.new_empty((*rows.shape[:-1], width + padding))
            padded[..., :dim].copy_(rows[..., :dim])
            padded[..., dim + padding :].copy_(rows[..., dim:])
            values = torch.ops.fbgemm.Fused8BitRowwiseQuantizedToFloat(padded.view(-1, width + padding))
            x.copy_(values[:, :dim].view(x.shape))
            return
        source = rows if rows.is_contiguous() else scratch.take("coded", tuple(rows.shape), torch.uint8).copy_(rows)
        target = x if x.is_contiguous() else scratch.take("values", tuple(x.shape))
        torch.ops.fbgemm.Fused8BitRowwiseQuantizedToFloatOut(target.view(-1, dim), source.view(-1, width))
        if target is not x:
            x.copy_(target)


FORMATS = {"int8": Int8Fbgemm}
"""What it has, by name."""
