"""``int2``: four even levels around zero, at fixed multiples of the row's root mean square, four codes a byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from torchrec_qcomm.codecs.checks import check_dim
from torchrec_qcomm.codecs.parts import scales
from torchrec_qcomm.codecs.parts.memory import Scratch
from torchrec_qcomm.codecs.parts.noise import Draw
from torchrec_qcomm.codecs.parts.packing import pack, packed_bytes, unpack
from torchrec_qcomm.codecs.parts.rounding import Rounded, to_integers
from torchrec_qcomm.codecs.parts.row_values import bound_inputs, finish_bound, spoil

_STEP = 255 / 256  # between levels; few bits, so that steps are exact for scales of 16 bits
_ROUND = 2.0**23  # added to 0..3, it leaves the rounded integer in the lowest bits
_TOLERANCE = 2.0**-20  # in steps; covers the roundings of (x / step + 1.5)
_FACTOR = {"fp32": 1.0, "bf16": 1.0, "fp16": 1.0, "e8m0": 2.0**-0.5}
"""Multiplied with the root mean square before it is rounded up: powers of two would be 1.4 times too large on average."""


@dataclass(frozen=True, slots=True)
class Int2(Rounded):
    """Four even levels, at -1.494, -0.498, 0.498 and 1.494 times the row's root mean square (RMS).

    Formula: ``scale = sqrt(mean(x**2))`` rounded up to the format, ``step = 255 / 256 * scale``, ``code = round(x / step +
    1.5)`` clamped to 0..3, ``value = (code - 1.5) * step``; nearest, ties to even, or stochastic, to one of the two levels
    around. The RMS is computed on ``x / 2**k`` with ``2**k`` next to the row's largest value: no amplitude overflows.

    Bytes of a row (ceil(D / 4) + 2; + 4 with an FP32, + 1 with an E8M0 scale): ``codes 0 to 3 | codes 4 to 7 | ... | scale``,
    little-endian. The first column is in the two lowest bits; bits beyond the last column are 0.

    Bound: ``step / 2`` within the levels, ``|x| - 1.5 step`` beyond them; in general the larger of the two. Stochastic:
    ``step`` within. The scale is between ``2**-126`` and ``2**127``: the error of rows with a smaller RMS is absolute,
    ``2**-126``.

    Bias: values beyond the outer levels saturate, 14 % of a normal row. **Stochastic int2 is unbiased only inside +-1.494 RMS**
    (but for FP32 roundings). Variance, stochastic: ``step**2 f (1 - f)`` with ``f`` the fraction of ``x / step + 1.5``; at most
    ``step**2 / 4``.

    Relative L2 error of normal rows: 0.343, stochastic 0.435 (with an E8M0 scale 0.365 and 0.461). The levels are the best even
    ones for a normal distribution; four levels from minimum to maximum have 0.50. Good for rows like that. Bad for rows of one
    magnitude, constant ones too: the magnitude lies halfway between two levels, and the error is 0.50. Bad for sparse rows too,
    since no level is 0: a zero comes back as half a step, unless its whole row is zeros. A row with a NaN or Inf decodes to NaN
    in every column (the scale is NaN).

    Args:
        rounding: ``nearest`` or ``stochastic``.
        scale: ``bf16``; ``fp32``; ``fp16``, for RMS from 6.1e-5 to 65504 only, below which the error is absolute, 3.1e-5, and
            beyond which values saturate; ``e8m0``, the nearest power of two.

    Source: J. Max, "Quantizing for minimum distortion", IRE Trans. Inf. Theory 6 (1960), table of even levels.
    """

    scale: str = "bf16"
    name: ClassVar[str] = "int2"

    def __post_init__(self) -> None:
        Rounded.__post_init__(self)  # not `super()`: a slotted dataclass is a new class, which it does not know
        scales.check_format(self.name, self.scale)

    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int:
        check_dim(self, dim)
        return packed_bytes(dim, 2) + scales.FORMATS[self.scale]

    def _measure(self, x: torch.Tensor, scratch: Scratch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``x / 2**k`` in ``scratch``, ``2**k`` and the scale of every row; NaN in the last for a row that is not finite."""
        shape = tuple(x.shape)
        y = torch.abs(x, out=scratch.take("scaled", shape))
        amax = y.amax(dim=-1, keepdim=True)
        power = amax.view(torch.int32).bitwise_and(0x7F800000).view(torch.float32).clamp_(2.0**-126, 2.0**126)
        torch.mul(x, power.reciprocal(), out=y)
        # Summed in FP64, so that the order of the sum, which differs between devices, does not change the scale.
        square = scratch.take("wide", shape, torch.float64).copy_(y).square_()
        rms = square.mean(dim=-1, keepdim=True).mul_(_FACTOR[self.scale] ** 2).sqrt_().float().mul_(power)
        return y, power, spoil(scales.rounded(rms, self.scale), amax)

    def _encode_rows(self, x: torch.Tensor, rows: torch.Tensor, scratch: Scratch, draw: Draw | None) -> None:
        dim, width = x.shape[-1], packed_bytes(x.shape[-1], 2)
        levels, power, scale = self._measure(x, scratch)
        scales.write(scale, self.scale, rows[..., width:], scratch)

        # For a row of zeros the inverse does not matter, as long as it is finite.
        inverse = scale.mul(_STEP).div_(power).clamp_(min=2.0**-100).reciprocal_()
        levels.mul_(inverse).add_(1.5).clamp_(0.0, 3.0)
        if draw is not None:
            to_integers(levels, torch.full_like(scale, _TOLERANCE), draw, scratch)
        levels.add_(_ROUND)
        codes = scratch.take("codes", (*x.shape[:-1], 4 * width), torch.uint8)
        codes[..., :dim].copy_(levels.view(torch.int32))  # keeps the lowest byte
        codes[..., dim:].zero_()
        pack(codes, 2, rows[..., :width], scratch)

    def _decode_rows(self, rows: torch.Tensor, x: torch.Tensor, scratch: Scratch) -> None:
        dim, width = x.shape[-1], packed_bytes(x.shape[-1], 2)
        step = scales.read(rows[..., width:], self.scale, scratch).mul(_STEP)
        x.copy_(unpack(rows[..., :width], 2, scratch)[..., :dim]).sub_(1.5).mul_(step)

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        x, low, high = bound_inputs(values)
        full = values.detach().float().contiguous()
        step = self._measure(full, Scratch(full.device))[2].double() * _STEP
        bound = torch.maximum(step * (self._steps + 2 * _TOLERANCE), x.abs() - step * (1.5 - 2 * _TOLERANCE))
        return finish_bound(bound, low, high)
