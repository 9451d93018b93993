"""``fp16`` and ``bf16``: 16 bits a value, no scale in the row."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from torchrec_qcomm.codecs.checks import check_dim
from torchrec_qcomm.codecs.parts.memory import Scratch, read_as, write_as
from torchrec_qcomm.codecs.parts.noise import Draw
from torchrec_qcomm.codecs.parts.rounding import Rounded, to_bfloats, to_floats
from torchrec_qcomm.codecs.parts.row_values import bound_inputs, extremes, finish_bound, finite_amax, half_range, spoil
from torchrec_qcomm.errors import CodecError, describe


@dataclass(frozen=True, slots=True)
class _Half(Rounded):
    """The part that both formats share: ``code = cast(clamp(x * loss_scale))``, ``value = code / loss_scale``."""

    loss_scale: float = 1.0
    wire: ClassVar[torch.dtype]

    def __post_init__(self) -> None:
        Rounded.__post_init__(self)  # not `super()`: a slotted dataclass is a new class, which it does not know
        scale = self.loss_scale
        number = isinstance(scale, int | float) and not isinstance(scale, bool)
        # The factor is applied in FP32, so it must be a normal number there.
        if not (number and 2.0**-126 <= scale <= 2.0**127):
            raise CodecError(
                describe(
                    f"codec {self.name}, loss_scale", "bad value", got=scale, allowed="a number > 0, from 2**-126 to 2**127"
                )
            )
        object.__setattr__(self, "loss_scale", float(torch.tensor(float(scale), dtype=torch.float32)))

    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int:
        check_dim(self, dim)
        return 2 * dim

    def _encode_rows(self, x: torch.Tensor, rows: torch.Tensor, scratch: Scratch, draw: Draw | None) -> None:
        limit = torch.finfo(self.wire).max
        amax = finite_amax(x)
        scaled = scratch.take("scaled", tuple(x.shape))
        if amax is not None and amax * self.loss_scale <= limit:
            plain = x if self.loss_scale == 1.0 else torch.mul(x, self.loss_scale, out=scaled)
            write_as(rows, plain if draw is None else self._between(plain, draw, scratch), self.wire, scratch, "codes")
            return
        witness = half_range(*extremes(x, scratch))
        factor = spoil(torch.full_like(witness, self.loss_scale), witness)
        torch.mul(x, factor, out=scaled).clamp_(-limit, limit)  # keeps NaN
        if draw is not None:
            scaled = self._between(scaled, draw, scratch).mul_(spoil(factor.fill_(1.0), witness))
        write_as(rows, scaled, self.wire, scratch, "codes")

    @abstractmethod
    def _between(self, x: torch.Tensor, draw: Draw, scratch: Scratch) -> torch.Tensor:
        """For each of ``x`` one of the two values of the format around it, in ``scratch``; for a NaN, any value."""

    def _decode_rows(self, rows: torch.Tensor, x: torch.Tensor, scratch: Scratch) -> None:
        x.copy_(read_as(rows, self.wire, scratch, "codes"))
        if self.loss_scale != 1.0:
            x.div_(self.loss_scale)

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        x, low, high = bound_inputs(values)
        info = torch.finfo(self.wire)
        scaled = x.abs() * self.loss_scale
        # A step is eps times the power of two below the value; for smaller values, eps times the smallest normal.
        power = torch.exp2(torch.frexp(scaled.clamp(min=info.tiny))[1].double() - 1)
        rounding = power * info.eps * self._steps
        excess = (scaled - info.max).clamp(min=0)
        fp32 = x.abs() * 2.0**-22 + 2.0**-149  # the product and the quotient are rounded too
        return finish_bound((rounding + excess) / self.loss_scale + fp32, low, high)


@dataclass(frozen=True, slots=True)
class Fp16(_Half):
    """IEEE binary16, with a loss scale, since the row carries no scale.

    Formula: ``code = fp16(clamp(x * loss_scale, -65504, 65504))``, ``value = code / loss_scale``; nearest, ties to even, or
    stochastic, to one of the two neighbours.

    Bytes of a row (2 D): ``code 0 | code 1 | ...``, little-endian.

    Bound: half an FP16 step, i.e. ``2**-11`` of ``|x|``; below ``6.1e-5 / loss_scale`` absolute, ``2**-25 / loss_scale``. Two
    FP32 roundings come on top. Stochastic: twice that. Bias: none but at ties, though values under ``2**-25 / loss_scale``
    become 0; stochastic: none. Values beyond ``65504 / loss_scale`` saturate. A row with a NaN or Inf decodes to NaN in every
    column.

    Variance, stochastic: ``step**2 f (1 - f)``, where ``f`` is the part of a step above the neighbour next to zero, ``step =
    2**-10 * 2**floor(log2 |x|)`` and ``2**-24 / loss_scale`` at least; at most ``2**-22 x**2`` above that.

    Args:
        rounding: ``nearest`` or ``stochastic``.
        loss_scale: positive, finite; a factor that is multiplied in before the cast and divided out after decoding. Powers of
        two cost no precision.

    Source: IEEE 754-2008; loss scaling as in "Mixed Precision Training", arXiv 1710.03740.
    """

    name: ClassVar[str] = "fp16"
    wire: ClassVar[torch.dtype] = torch.float16

    def _between(self, x: torch.Tensor, draw: Draw, scratch: Scratch) -> torch.Tensor:
        return to_floats(x, 10, -14, draw, scratch)


@dataclass(frozen=True, slots=True)
class Bf16(_Half):
    """bfloat16: the range of FP32 with 8 bits of precision.

    Formula: ``code = bf16(clamp(x * loss_scale, -3.39e38, 3.39e38))``, ``value = code / loss_scale``; nearest, ties to
    even, or stochastic, to one of the two neighbours.

    Bytes of a row (2 D): ``code 0 | code 1 | ...``, little-endian; each is the upper half of an FP32.

    Bound: half a BF16 step, i.e. ``2**-8`` of ``|x|`` at most; below ``1.2e-38 / loss_scale`` absolute, ``2**-134 /
    loss_scale``. Two FP32 roundings come on top. Stochastic: twice that. Bias: none but at ties; stochastic: none. Values
    beyond the largest finite BF16 saturate there instead of rounding to Inf. A row with a NaN or Inf decodes to NaN in every
    column.

    Variance, stochastic: ``step**2 f (1 - f)``, where ``f`` is the part of a step above the neighbour next to zero, ``step =
    2**-7 * 2**floor(log2 |x|)`` and ``2**-133 / loss_scale`` at least; at most ``2**-16 x**2`` above that.

    Args:
        rounding: ``nearest`` or ``stochastic``.
        loss_scale: positive, finite; a factor that is multiplied in before the cast and divided out after decoding.

    Source: "A Study of BFLOAT16 for Deep Learning Training", arXiv 1905.12322.
    """

    name: ClassVar[str] = "bf16"
    wire: ClassVar[torch.dtype] = torch.bfloat16

    def _between(self, x: torch.Tensor, draw: Draw, scratch: Scratch) -> torch.Tensor:
        return to_bfloats(x, draw, scratch)
