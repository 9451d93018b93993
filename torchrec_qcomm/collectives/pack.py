"""Values to one buffer of bytes and back, as a `Side` says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod

import torch

from torchrec_qcomm.codecs import Codec, Noise
from torchrec_qcomm.errors import WireError, describe
from torchrec_qcomm.wire import Block, Layer, Side

Segments = Sequence[tuple[Block, torch.Tensor]]
"""Blocks whose vectors ``[rows, columns, dim]`` share a range with others of their table."""

HeadsOf = Callable[[Segments], Sequence[torch.Tensor]]
"""Given all segments of a message, the heads of the columns of each: ``uint8 [columns, codec.segment_bytes]``."""


def pack(values: torch.Tensor, side: Side, noise: Noise | None = None, heads_of: HeadsOf | None = None) -> torch.Tensor:
    """Encode ``values`` into the buffer of ``side``.

    Args:
        values: ``side.shape``, of ``side.dtype``.
        side: the plan.
        noise: the random stream, which stochastic codecs need.
        heads_of: asked once for the ranges in force, which codecs need whose rows have none of their own.

    Returns:
        ``uint8 [side.nbytes]``. It is the storage of ``values`` itself where the wire format is the tensor's own.

    Raises:
        WireError: ``values`` has another shape or dtype than planned, or ranges are needed and nobody tells them.
    """
    if tuple(values.shape) != side.shape or values.dtype != side.dtype:
        raise WireError(
            describe(
                "pack",
                "values do not fit the byte plan",
                got=f"{values.dtype} {tuple(values.shape)}",
                allowed=f"{side.dtype} {side.shape}",
            )
        )
    values = values.contiguous()  # the plan's offsets are into a flat tensor; a no-op for a lookup and for most gradients
    if _moves_as_it_is(side):
        return values.view(-1).view(torch.uint8)
    buffer = torch.empty(side.nbytes, dtype=torch.uint8, device=values.device)
    blocks = [block for layer in side.layers if layer.twin is None for block in layer.blocks]
    for block in blocks:
        if not block.heads:
            _encode(_gathered(values, block), block, block.codec, buffer, side.dtype, noise)
    segments = [(block, _gathered(values, block)) for block in blocks if block.heads]
    for (block, rows), head in zip(segments, _heads(segments, heads_of), strict=True):
        _write_heads(buffer, block, head)
        _encode(rows, block, block.codec.within(head), buffer, side.dtype, noise)
    for layer in side.layers:
        if layer.twin is not None:
            first = side.layers[layer.twin]
            buffer[layer.start :][: layer.nbytes].copy_(buffer[first.start :][: first.nbytes])
    return buffer


def _gathered(values: torch.Tensor, block: Block) -> torch.Tensor:
    """The block's vectors ``[rows, columns, dim]``."""
    if block.adjacent:
        return _vectors(values, block)
    # One copy gathers the columns of a codec: a mixed policy costs one encode a codec and not one a table.
    return torch.stack([_vectors(values, block, offset) for offset in block.offsets], dim=1)


def _encode(
    rows: torch.Tensor, block: Block, codec: Codec, buffer: torch.Tensor, dtype: torch.dtype, noise: Noise | None
) -> None:
    # Where a block starts in the buffer tells its stream from those of the others.
    own = None if noise is None else noise.at(block.byte_offset << 32)
    codec.encode(rows, out=_bytes(buffer, block, dtype), noise=own)


def _heads(segments: Segments, heads_of: HeadsOf | None) -> Sequence[torch.Tensor]:
    if not segments:
        return ()
    if heads_of is None:
        spec = segments[0][0].codec.spec
        raise WireError(
            describe("pack: heads_of", f"codec {spec} needs the range of each table", got=None, allowed="a function")
        )
    return heads_of(segments)


def _write_heads(buffer: torch.Tensor, block: Block, head: torch.Tensor) -> None:
    if (view := _heads_view(buffer, block)) is not None and len(set(block.heads)) == len(block.heads):
        view.copy_(head)
        return
    for column, offset in enumerate(block.heads):  # of one table, all columns write the same
        buffer[offset : offset + head.shape[1]].copy_(head[column])


def _read_heads(buffer: torch.Tensor, block: Block) -> torch.Tensor:
    view, size = _heads_view(buffer, block), block.codec.segment_bytes
    return torch.stack([buffer[offset : offset + size] for offset in block.heads]) if view is None else view


def _heads_view(buffer: torch.Tensor, block: Block) -> torch.Tensor | None:
    """The heads ``[columns, segment_bytes]`` in the buffer, if they are evenly spaced."""
    size = block.codec.segment_bytes
    gaps = {after - before for before, after in pairwise(block.heads)} or {size}
    if len(gaps) > 1 or min(gaps) < 0:
        return None
    return buffer.as_strided((len(block.heads), size), (gaps.pop(), 1), buffer.storage_offset() + block.heads[0])


def unpack(buffer: torch.Tensor, side: Side) -> torch.Tensor:
    """Decode the buffer of ``side`` into new values.

    Args:
        buffer: ``uint8 [side.nbytes]``, owned by the caller: the result may be its storage.
        side: the plan.

    Returns:
        ``side.shape``, of ``side.dtype``.
    """
    if _moves_as_it_is(side):
        return buffer.view(side.dtype).view(side.shape)
    if len(side.layers) == 1:
        values = torch.empty(side.shape, dtype=side.dtype, device=buffer.device)
        _decode(buffer, side.layers[0], side.dtype, values)
        return values
    # Codes are never added: every layer is decoded, and summed in FP32 in the order of ranks.
    total = torch.empty(side.shape, dtype=torch.float32, device=buffer.device)
    _decode(buffer, side.layers[0], side.dtype, total)
    part = torch.empty_like(total)
    for layer in side.layers[1:]:
        _decode(buffer, layer, side.dtype, part)
        total += part
    return total.to(side.dtype)


def _decode(buffer: torch.Tensor, layer: Layer, dtype: torch.dtype, values: torch.Tensor) -> None:
    """Decode a layer that was encoded from ``dtype`` into ``values``, of that dtype or FP32."""
    for block in layer.blocks:
        data = _bytes(buffer, block, dtype)
        codec = block.codec.within(_read_heads(buffer, block)) if block.heads else block.codec
        # All codecs but `none` decode to any dtype; rounding to 16 bits waits until after the sum.
        free = codec.row_bytes(block.dim, dtype) == codec.row_bytes(block.dim, values.dtype)
        if block.adjacent and free:
            codec.decode(data, block.dim, out=_vectors(values, block))
            continue
        rows = codec.decode(data, block.dim, dtype=values.dtype if free else dtype)
        for i, offset in enumerate(block.offsets):  # the counterpart of the gather in `pack`
            _vectors(values, block, offset).copy_(rows[:, i])


def _moves_as_it_is(side: Side) -> bool:
    """Whether bytes and values are the same storage: one block of ``none``, rows in the same order, no gaps."""
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


def _vectors(values: torch.Tensor, block: Block, offset: int | None = None) -> torch.Tensor:
    """The block's vectors ``[rows, columns, dim]``, or ``[rows, dim]`` of the column at ``offset``."""
    base = values.storage_offset()
    if offset is not None:
        return values.as_strided((block.rows, block.dim), (block.stride, 1), base + offset)
    size = (block.rows, len(block.offsets), block.dim)
    return values.as_strided(size, (block.stride, block.dim, 1), base + block.offsets[0])


def _bytes(buffer: torch.Tensor, block: Block, dtype: torch.dtype) -> torch.Tensor:
    """The block's bytes ``[rows, columns, row_bytes]``."""
    row_bytes = block.codec.row_bytes(block.dim, dtype)
    size = (block.rows, len(block.offsets), row_bytes)
    return buffer.as_strided(size, (block.byte_stride, row_bytes, 1), block.byte_offset)
