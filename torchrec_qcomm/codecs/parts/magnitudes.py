"""What codecs of signs and levels ask of a row: its largest magnitude, its norms, and the signs of its values as bits."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torchrec_qcomm.codecs.parts.memory import Scratch
from torchrec_qcomm.codecs.parts.packing import pack, packed_bytes, unpack
from torchrec_qcomm.codecs.parts.row_values import extremes, spoil
from torchrec_qcomm.errors import CodecError, describe


def amax(x: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """The largest magnitude of every row, FP32 ``[..., 1]``; NaN for a row that is not finite."""
    low, high = extremes(x, scratch)
    largest = torch.maximum(high, low.neg_())
    return spoil(largest, largest)


def norm(x: torch.Tensor, order: int, scratch: Scratch) -> torch.Tensor:
    """The 1- or 2-norm of every row, FP64 ``[..., 1]``, where sums neither overflow nor lose small values."""
    wide = scratch.take("wide", tuple(x.shape), torch.float64).copy_(x)  # torch.linalg.vector_norm is five times slower
    if order == 1:
        return wide.abs_().sum(dim=-1, keepdim=True)
    return wide.square_().sum(dim=-1, keepdim=True).sqrt_()


def upward(values: torch.Tensor) -> torch.Tensor:
    """FP64 to FP32, rounded up; NaN for what is not finite."""
    down = values.float()
    up = torch.where(down < values, torch.nextafter(down, torch.full_like(down, torch.inf)), down)
    return spoil(up, up)


def pack_signs(x: torch.Tensor, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """Write a bit for each value of ``x [..., dim]`` into ``out [..., packed_bytes(dim, 1)]``: 1 if negative, else 0.

    Returns:
        Which values are negative, bool of the shape of ``x``, in ``scratch``.
    """
    dim = x.shape[-1]
    codes = scratch.take("codes", (*x.shape[:-1], 8 * packed_bytes(dim, 1)), torch.uint8)
    codes[..., dim:].zero_()
    negative = torch.lt(x, 0.0, out=scratch.take("negative", tuple(x.shape), torch.bool))
    codes[..., :dim].copy_(negative)
    pack(codes, 1, out, scratch)
    return negative


def unpack_signs(data: torch.Tensor, negative: torch.Tensor, positive: torch.Tensor, x: torch.Tensor, scratch: Scratch) -> None:
    """Fill ``x [..., dim]`` with ``negative [..., 1]`` where `pack_signs` wrote a 1, and with ``positive`` elsewhere."""
    # torch.where is slow on broadcast rows, so masks of 32 equal bits choose instead.
    negative, positive = negative.contiguous().view(torch.int32), positive.contiguous().view(torch.int32)
    bits = x.view(torch.int32).copy_(unpack(data, 1, scratch)[..., : x.shape[-1]]).neg_()
    bits.bitwise_and_(negative ^ positive).bitwise_xor_(positive)


def one_of(codec: str, param: str, got: object, allowed: Iterable[object]) -> None:
    """Raise ``CodecError`` unless a parameter is one of a few values, of the same type."""
    allowed = tuple(allowed)
    if not any(got == value and type(got) is type(value) for value in allowed):
        raise CodecError(describe(f"codec {codec}, {param}", "bad value", got=got, allowed=allowed))
