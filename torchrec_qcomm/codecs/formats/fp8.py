"""``fp8_e4m3`` and ``fp8_e5m2``: 8-bit floats with one power-of-two scale a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from torchrec_qcomm.codecs.checks import check_dim
from torchrec_qcomm.codecs.parts.memory import Scratch
from torchrec_qcomm.codecs.parts.noise import Draw
from torchrec_qcomm.codecs.parts.rounding import Rounded, to_floats
from torchrec_qcomm.codecs.parts.row_values import bound_inputs, extremes, finish_bound, spoil


@dataclass(frozen=True, slots=True)
class _Fp8(Rounded):
    """The part that both formats share; a format adds its constants and how its codes become FP16."""

    wire: ClassVar[torch.dtype]
    top: ClassVar[int]  # the largest finite code value is 0.875 * 2**top
    mantissa: ClassVar[int]  # explicit bits
    smallest: ClassVar[int]  # exponent of the smallest normal code
    lift: ClassVar[float]  # codes are unpacked as value / lift

    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int:
        check_dim(self, dim)
        return dim + 1

    def _scale(self, amax: torch.Tensor) -> torch.Tensor:
        """``2**e`` of every row with ``e = ceil(log2(amax / largest))``, clamped; NaN for a row that is not finite.

        It works on the bits, since a rounded logarithm is off by one next to powers of two. With ``amax = 1.m * 2**E`` and
        ``largest = 0.875 * 2**top``, ``e`` is ``E + 1 - top``. It is one more if ``1.m / 2 > 0.875``, i.e. if the mantissa
        field is above 0x600000: adding 0x1FFFFF carries into the exponent field in just that case.
        """
        power = (amax.view(torch.int32) + 0x1FFFFF).bitwise_and_(0x7F800000).view(torch.float32)
        return spoil(power.clamp_(2.0 ** (self.top - 127), 2.0**127), amax).mul_(2.0 ** (1 - self.top))

    def _encode_rows(self, x: torch.Tensor, rows: torch.Tensor, scratch: Scratch, draw: Draw | None) -> None:
        dim = x.shape[-1]
        low, high = extremes(x, scratch)
        amax = torch.maximum(high, low.neg_())
        scale = self._scale(amax)
        # torch's cast makes NaN or Inf of values above the largest code. Only rows whose scale is clamped have such values.
        limit = torch.finfo(self.wire).max
        scaled = torch.mul(x, scale.reciprocal(), out=scratch.take("scaled", tuple(x.shape))).clamp_(-limit, limit)
        if draw is not None:
            scaled = to_floats(scaled, self.mantissa, self.smallest, draw, scratch)
        rows[..., :dim].view(self.wire).copy_(scaled)
        # The exponent field of the scale is e + 127, and 255 for a NaN. In a row of zeros the maximum has sign 0, which makes
        # it 0.
        rows[..., dim:].copy_(scale.mul_(amax.sign_()).view(torch.int32).bitwise_right_shift_(23))

    def _unpack(self, codes: torch.Tensor) -> torch.Tensor:
        """Codes, sign-extended to int16 and overwritten here, to FP16 values divided by ``lift``.

        torch's own cast from float8 is not vectorised on a CPU; shifting the bits into FP16's places is.
        """
        raise NotImplementedError

    def _decode_rows(self, rows: torch.Tensor, x: torch.Tensor, scratch: Scratch) -> None:
        dim = x.shape[-1]
        codes = scratch.take("codes", tuple(x.shape), torch.int16).copy_(rows[..., :dim].view(torch.int8))
        scale = rows[..., dim:].to(torch.int32).bitwise_left_shift_(23).view(torch.float32)  # byte 255: Inf
        x.copy_(self._unpack(codes)).mul_(spoil(scale, scale).mul_(self.lift))

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        x, low, high = bound_inputs(values)
        amax = torch.maximum(high, -low)
        scale = self._scale(amax.float()).double()
        power = torch.exp2(torch.frexp(x.abs())[1].double() - 1)
        step = torch.maximum(power, 2.0**self.smallest * scale) * 2.0**-self.mantissa
        excess = (x.abs() - torch.finfo(self.wire).max * scale).clamp(min=0)
        return finish_bound(torch.where(amax == 0, 0.0, self._steps * step + excess), low, high)


@dataclass(frozen=True, slots=True)
class Fp8E4M3(_Fp8):
    """OCP FP8 E4M3 codes with one E8M0 scale a row.

    Formula: ``e = ceil(log2(row amax / 448))``, ``code = e4m3(x * 2**-e)``, ``value = code * 2**e``; nearest, ties to even,
    or stochastic, to one of the two neighbours. Rounding ``e`` up means that the row's largest value is never clipped.

    Bytes of a row (D + 1): ``code 0 | ... | code D-1 | e + 127``. The last byte is 0 for an all-zero row and 255 for a row with
    a NaN or Inf, which decodes to NaN in every column.

    Bound: half a step, i.e. at most ``2**-4`` of ``|x|``, or ``2**-10 * 2**e`` for values below ``2**-6 * 2**e`` (about
    ``2**-14`` of the row's largest). Scaling is exact, so there is no other rounding. Stochastic: twice that. Bias: none but at
    ties; stochastic: none. ``e`` is clamped to [-126, 119]: values beyond 2.97e38 saturate, and in rows below 5e-36 the error
    is absolute, ``2**-136``.

    Variance, stochastic: ``step**2 f (1 - f)``, where ``f`` is the part of a step above the neighbour next to zero, ``step =
    2**-3 * 2**floor(log2 |x|)`` and ``2**-9 * 2**e`` at least; at most ``2**-8 x**2`` above that.

    Args:
        rounding: ``nearest`` or ``stochastic``.

    Source: "FP8 formats for deep learning", arXiv 2209.05433. E8M0 is from OCP Microscaling Formats (MX) v1.0, section 5.4.1;
    its rule for shared exponents (floor) is not used, since it clips maxima.
    """

    name: ClassVar[str] = "fp8_e4m3"
    wire: ClassVar[torch.dtype] = torch.float8_e4m3fn
    top: ClassVar[int] = 9
    mantissa: ClassVar[int] = 3
    smallest: ClassVar[int] = -6
    lift: ClassVar[float] = 2.0**8

    def _unpack(self, codes: torch.Tensor) -> torch.Tensor:
        # s eeee mmm -> s 0eeee mmm0000000: FP16's bias is 15 and E4M3's 7, so the value is 2**-8 times the code's, subnormals
        # too. The sign extension left a copy of the sign in bit 14, which is cleared.
        return codes.bitwise_left_shift_(7).bitwise_and_(~0x4000).view(torch.float16)


@dataclass(frozen=True, slots=True)
class Fp8E5M2(_Fp8):
    """OCP FP8 E5M2 codes with one E8M0 scale a row: less precision than E4M3, more range inside a row; made for gradients.

    Formula: ``e = ceil(log2(row amax / 57344))``, ``code = e5m2(x * 2**-e)``, ``value = code * 2**e``; nearest, ties to
    even, or stochastic, to one of the two neighbours.

    Bytes of a row (D + 1): ``code 0 | ... | code D-1 | e + 127``. The last byte is 0 for an all-zero row and 255 for a row with
    a NaN or Inf, which decodes to NaN in every column.

    Bound: half a step, i.e. at most ``2**-3`` of ``|x|``, or ``2**-17 * 2**e`` for values below ``2**-14 * 2**e`` (about
    ``2**-29`` of the row's largest). Scaling is exact, so there is no other rounding. Stochastic: twice that. Bias: none but at
    ties; stochastic: none. ``e`` is clamped to [-126, 112]: values beyond 2.97e38 saturate, and in rows below 7e-34 the error
    is at least ``2**-143``.

    Variance, stochastic: ``step**2 f (1 - f)``, where ``f`` is the part of a step above the neighbour next to zero, ``step =
    2**-2 * 2**floor(log2 |x|)`` and ``2**-16 * 2**e`` at least; at most ``2**-6 x**2`` above that.

    Args:
        rounding: ``nearest`` or ``stochastic``.

    Source: as for E4M3.
    """

    name: ClassVar[str] = "fp8_e5m2"
    wire: ClassVar[torch.dtype] = torch.float8_e5m2
    top: ClassVar[int] = 16
    mantissa: ClassVar[int] = 2
    smallest: ClassVar[int] = -14
    lift: ClassVar[float] = 1.0

    def _unpack(self, codes: torch.Tensor) -> torch.Tensor:
        return codes.bitwise_left_shift_(8).view(torch.float16)  # E5M2 is the upper byte of FP16
