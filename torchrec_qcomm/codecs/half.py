"""``fp16`` and ``bf16``: 16 bits a value, no scale in the row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from torchrec_qcomm.codecs.base import check_dim
from torchrec_qcomm.codecs.rows import (
    RowCodec,
    Scratch,
    bound_inputs,
    extremes,
    finish_bound,
    finite_amax,
    half_range,
    load,
    spoil,
    store,
)
from torchrec_qcomm.errors import CodecError, describe


@dataclass(frozen=True, slots=True)
class _Half(RowCodec):
    """The common body: ``code = cast(clamp(x * loss_scale))``, ``value = code / loss_scale``."""

    loss_scale: float = 1.0
    wire: ClassVar[torch.dtype]

    def __post_init__(self) -> None:
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

    def _encode_rows(self, x: torch.Tensor, rows: torch.Tensor, scratch: Scratch) -> None:
        limit = torch.finfo(self.wire).max
        amax = finite_amax(x)
        scaled = scratch.take("scaled", tuple(x.shape))
        if amax is not None and amax * self.loss_scale <= limit:
            plain = x if self.loss_scale == 1.0 else torch.mul(x, self.loss_scale, out=scaled)
            store(rows, plain, self.wire, scratch, "codes")
            return
        witness = half_range(*extremes(x, scratch))
        factor = spoil(torch.full_like(witness, self.loss_scale), witness)
        torch.mul(x, factor, out=scaled).clamp_(-limit, limit)  # keeps NaN
        store(rows, scaled, self.wire, scratch, "codes")

    def _decode_rows(self, rows: torch.Tensor, x: torch.Tensor, scratch: Scratch) -> None:
        x.copy_(load(rows, self.wire, scratch, "codes"))
        if self.loss_scale != 1.0:
            x.div_(self.loss_scale)

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        x, low, high = bound_inputs(values)
        info = torch.finfo(self.wire)
        scaled = x.abs() * self.loss_scale
        # Half a step: eps / 2 of the power of two below the value, and of the smallest normal below that.
        power = torch.exp2(torch.frexp(scaled.clamp(min=info.tiny))[1].double() - 1)
        half_step = power * info.eps / 2
        excess = (scaled - info.max).clamp(min=0)
        fp32 = x.abs() * 2.0**-22 + 2.0**-149  # the product and the quotient round too
        return finish_bound((half_step + excess) / self.loss_scale + fp32, low, high)


@dataclass(frozen=True, slots=True)
class Fp16(_Half):
    """IEEE binary16, with a loss scale because the row carries none.

    Formula: ``code = fp16(clamp(x * loss_scale, -65504, 65504))``, ``value = code / loss_scale``; nearest, ties to even.

    Bytes of a row (2 D): ``code 0 | code 1 | ...``, little-endian.

    Bound: half an FP16 step, i.e. ``2**-11`` of ``|x|``; below ``6.1e-5 / loss_scale`` absolute, ``2**-25 / loss_scale``. On
    top come two FP32 roundings. Bias: none beyond the ties; values under ``2**-25 / loss_scale`` become 0. Values beyond
    ``65504 / loss_scale`` saturate. A row with a NaN or Inf decodes to NaN in every column.

    Args:
        loss_scale: positive, finite; multiplies before the cast and divides after decoding. Powers of two cost no precision.

    Source: IEEE 754-2008; loss scaling as in "Mixed Precision Training", arXiv 1710.03740.
    """

    name: ClassVar[str] = "fp16"
    wire: ClassVar[torch.dtype] = torch.float16


@dataclass(frozen=True, slots=True)
class Bf16(_Half):
    """bfloat16: the range of FP32 with 8 bits of precision.

    Formula: ``code = bf16(clamp(x * loss_scale, -3.39e38, 3.39e38))``, ``value = code / loss_scale``; nearest, ties to even.

    Bytes of a row (2 D): ``code 0 | code 1 | ...``, little-endian; each is the upper half of an FP32.

    Bound: half a BF16 step, i.e. ``2**-8`` of ``|x|`` at most; below ``1.2e-38 / loss_scale`` absolute, ``2**-134 /
    loss_scale``. On top come two FP32 roundings. Bias: none beyond the ties. Values beyond the largest finite BF16 saturate
    there instead of rounding to Inf. A row with a NaN or Inf decodes to NaN in every column.

    Args:
        loss_scale: positive, finite; multiplies before the cast and divides after decoding.

    Source: "A Study of BFLOAT16 for Deep Learning Training", arXiv 1905.12322.
    """

    name: ClassVar[str] = "bf16"
    wire: ClassVar[torch.dtype] = torch.bfloat16
