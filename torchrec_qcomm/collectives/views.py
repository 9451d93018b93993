"""Views of values and bytes through the blocks of a layout."""

from __future__ import annotations

from math import prod

import torch

from torchrec_qcomm.wire import Block, Side


def vectors_of(values: torch.Tensor, block: Block, offset: int | None = None) -> torch.Tensor:
    """The block's vectors ``[rows, columns, dim]``, or ``[rows, dim]`` of the column at ``offset``."""
    base = values.storage_offset()
    if offset is not None:
        return values.as_strided((block.rows, block.dim), (block.stride, 1), base + offset)
    size = (block.rows, len(block.offsets), block.dim)
    return values.as_strided(size, (block.stride, block.dim, 1), base + block.offsets[0])


def bytes_of(buffer: torch.Tensor, block: Block, dtype: torch.dtype) -> torch.Tensor:
    """The block's bytes ``[rows, columns, row_bytes]``."""
    row_bytes = block.codec.row_bytes(block.dim, dtype)
    size = (block.rows, len(block.offsets), row_bytes)
    return buffer.as_strided(size, (block.byte_stride, row_bytes, 1), block.byte_offset)


def same_storage(side: Side) -> bool:
    """Whether the bytes are the values as they lie in memory: one block of ``none``, rows in the same order, no gaps."""
    if len(side.layers) != 1 or len(side.layers[0].blocks) != 1:
        return False
    (block,) = side.layers[0].blocks
    width = len(block.offsets) * block.dim
    return (
        block.codec.spec.name in ("none", "fp32")
        and block.adjacent
        and block.offsets[0] == 0
        and block.stride == width
        and block.byte_stride == width * side.dtype.itemsize
        and block.rows * width == prod(side.shape)
    )
