"""``range: {ema: d}`` and ``{static: [lo, hi]}``: the rows of a table share a range, and have no scale of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from torchrec_qcomm.codecs.base import Codec
from torchrec_qcomm.codecs.checks import check_dim
from torchrec_qcomm.codecs.parts.memory import Scratch
from torchrec_qcomm.codecs.parts.noise import Draw, Noise
from torchrec_qcomm.codecs.parts.packing import pack, packed_bytes, unpack
from torchrec_qcomm.codecs.parts.ranges import LIMIT, Range
from torchrec_qcomm.codecs.parts.rounding import Rounded, to_integers
from torchrec_qcomm.codecs.parts.row_values import extremes, finish_bound, half_range, spoil
from torchrec_qcomm.codecs.rows import RowCodec
from torchrec_qcomm.codecs.spec import CodecSpec
from torchrec_qcomm.errors import CodecError, describe

_SMALLEST_STEP = 2.0**-126


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRange(Rounded):
    """``2**bits - 1`` even levels over a range that all rows of a table share, one of them zero.

    Formula, for a range from ``lo <= 0`` to ``hi >= 0``: ``L = 2**bits - 2``, ``step = (hi - lo) / L``,
    ``zero = round(-lo / step)``, ``code = clamp(round(x / step) + zero, 0, L)``, ``value = (code - zero) * step``; nearest,
    ties to even, or stochastic. The highest code, ``L + 1``, is NaN.

    Bytes of a row (``ceil(D * bits / 8)``): codes alone. In int4 the even column is in the low nibble, and the last high nibble
    of an odd D is zero. The range header is ``step, 4 bytes | zero, 4 bytes``, FP32, little-endian. It stands before the rows
    of a table, once for all rows that a rank sends to another.

    Bound: ``step / 2`` inside the range, plus FP32 roundings; stochastic: ``step``; beyond the range, the distance to its end
    comes on top. Bias: values beyond the range shrink to its end; with stochastic rounding there is no other. Zeros are exact.
    A row with a NaN or Inf decodes to NaN in every column.

    Rows much smaller than the range are lost, since no row has a scale. So this is for tables whose rows are alike. It pays off
    where rows are narrow: scale and minimum take 8 bytes, as much as the codes of 8 values.

    Variance, stochastic: ``step**2 f (1 - f)`` with ``f`` the fraction of ``x / step``; at most ``step**2 / 4``.

    A moving range that follows slowly clips values that grow, as those of a model do at first: with ``ema: 0.99`` for lookups
    the model of docs/convergence.md lost quality that it keeps with 0.9. The 15 levels of ``int4`` both ways ruined it.

    By itself it knows only a static range. A moving range belongs to the sender, who passes it on with `range_header` and
    `within`.

    Args:
        rounding: ``nearest`` or ``stochastic``.
        range: of kind ``ema`` or ``static``.

    Source: the affine quantization with a zero point of B. Jacob et al., "Quantization and Training of Neural Networks for
    Efficient Integer-Arithmetic-Only Inference" (2018), section 2.1.
    """

    bits: ClassVar[int]
    range: Range

    @property
    def levels(self) -> int:
        """The highest code of a number."""
        return int(2**self.bits - 2)

    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int:
        check_dim(self, dim)
        return packed_bytes(dim, self.bits)

    @property
    def range_header_bytes(self) -> int:
        """Step and zero."""
        return 8

    def range_header(self, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        """The range from ``low`` to ``high``, widened to hold zero, as it travels.

        Args:
            low, high: FP32 ``[...]``, finite.

        Returns:
            ``uint8 [..., 8]``.
        """
        return range_headers(low, high, torch.full_like(low, self.levels))

    def within(self, range_header: torch.Tensor) -> InRange:
        return InRange(self, range_header)

    def encode(self, values: torch.Tensor, out: torch.Tensor | None = None, noise: Noise | None = None) -> torch.Tensor:
        return self._static(values.device).encode(values, out, noise)

    def decode(
        self, data: torch.Tensor, dim: int, out: torch.Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        return self._static(data.device).decode(data, dim, out, dtype)

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        return self._static(values.device).error_bound(values)

    def _static(self, device: torch.device) -> InRange:
        if self.range.kind != "static":
            todo = "Pass it: codec.within(codec.range_header(low, high))."
            wrong = "its range is that of a sender, and moves"
            raise CodecError(describe(f"codec {self.spec}", wrong, got=None, allowed="a range", todo=todo))
        low, high = (torch.tensor(end, dtype=torch.float32, device=device) for end in self.range.numbers)
        return self.within(self.range_header(low, high))

    def _encode_rows(self, x: torch.Tensor, rows: torch.Tensor, scratch: Scratch, draw: Draw | None) -> None:
        raise AssertionError("only InRange has a range to encode in")

    def _decode_rows(self, rows: torch.Tensor, x: torch.Tensor, scratch: Scratch) -> None:
        raise AssertionError("only InRange has a range to decode in")


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8OneRange(OneRange):
    """255 levels, a byte a value."""

    name: ClassVar[str] = "int8"
    bits: ClassVar[int] = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Int4OneRange(OneRange):
    """15 levels, two values a byte."""

    name: ClassVar[str] = "int4"
    bits: ClassVar[int] = 4


def range_headers(low: torch.Tensor, high: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """`OneRange.range_header` of several codecs at once, by the ``levels`` that each has; all of one shape."""
    low, high = low.clamp(-LIMIT, 0.0), high.clamp(0.0, LIMIT)
    step = (high / levels - low / levels).clamp_(min=_SMALLEST_STEP)
    zero = torch.minimum((-low / step).round_(), levels)
    return torch.stack([step, zero], dim=-1).view(torch.uint8)


class InRange(RowCodec):
    """A `OneRange` with the ranges that it has: one for all rows, or one for each of the dimensions between first and last.

    Args:
        codec: without them.
        range_header: ``uint8 [..., 8]``, made by `OneRange.range_header`; its leading dimensions are broadcast against those
            of a payload.
    """

    __slots__ = ("_codec", "_step", "_zero")

    def __init__(self, codec: OneRange, range_header: torch.Tensor) -> None:
        self._codec = codec
        numbers = range_header.clone(memory_format=torch.contiguous_format).view(torch.float32)
        self._step, self._zero = numbers[..., :1], numbers[..., 1:]

    @property
    def spec(self) -> CodecSpec:
        return self._codec.spec

    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int:
        return self._codec.row_bytes(dim, dtype)

    @property
    def range_header_bytes(self) -> int:
        return self._codec.range_header_bytes

    def within(self, range_header: torch.Tensor) -> Codec:
        return self._codec.within(range_header)

    @property
    def stochastic(self) -> bool:
        return self._codec.stochastic

    def ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Beyond these a value saturates by more than half a step: FP32 ``[..., 1]``."""
        half = 0.5 + 2.0**-10  # of a step, and what rounding may add to it
        return self._step * (-self._zero - half), self._step * (self._codec.levels - self._zero + half)

    def _chunks(self, source: torch.Tensor, target: torch.Tensor, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Cut only the first dimension, since ranges may differ along the others."""
        if source.numel() == 0:
            return
        if source.dim() == 1:
            source, target = source.unsqueeze(0), target.unsqueeze(0)
        step = max(1, rows * source.shape[0] * source.shape[-1] // source.numel())
        for start in range(0, source.shape[0], step):
            yield source[start : start + step], target[start : start + step]

    def _encode_rows(self, x: torch.Tensor, rows: torch.Tensor, scratch: Scratch, draw: Draw | None) -> None:
        codec, dim = self._codec, x.shape[-1]
        finite = half_range(*extremes(x, scratch))
        t = spoil(torch.div(x, self._step, out=scratch.take("levels", tuple(x.shape))), finite)
        # Faster than torch.clamp by tensors.
        torch.minimum(torch.maximum(t, -self._zero, out=t), codec.levels - self._zero, out=t)
        if draw is None:
            t.round_()
        else:
            # The quotient was rounded once, and the step once.
            to_integers(t, t.new_full((1,), codec.levels * 2.0**-22), draw, scratch)
        t.add_(self._zero).nan_to_num_(nan=codec.levels + 1.0)
        codes = scratch.take("codes", (*x.shape[:-1], rows.shape[-1] * 8 // codec.bits), torch.uint8)
        codes[..., :dim].copy_(scratch.take("whole codes", tuple(x.shape), torch.int32).copy_(t))
        codes[..., dim:].zero_()
        pack(codes, codec.bits, rows, scratch)

    def _decode_rows(self, rows: torch.Tensor, x: torch.Tensor, scratch: Scratch) -> None:
        x.copy_(unpack(rows, self._codec.bits, scratch)[..., : x.shape[-1]])
        # The root of -1 is NaN, and the root of -0 adds nothing. On a CPU this is faster than filling by a mask.
        spoilt = torch.gt(x, self._codec.levels, out=scratch.take("spoilt", tuple(x.shape))).neg_().sqrt_()
        x.sub_(self._zero).mul_(self._step).add_(spoilt)

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        x, step, zero = values.detach().double(), self._step.double(), self._zero.double()
        levels = self._codec.levels
        beyond = (x - x.clamp(-zero * step, (levels - zero) * step)).abs()
        low, high = x.amin(dim=-1, keepdim=True), x.amax(dim=-1, keepdim=True)
        return finish_bound(step * (self._codec._steps + levels * 2.0**-21) + beyond, low, high)
