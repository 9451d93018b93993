"""Values to one buffer of bytes and back, as a `Side` says."""

from __future__ import annotations

from functools import partial
from itertools import chain

import torch

from torchrec_qcomm.codecs import Noise
from torchrec_qcomm.collectives import range_headers
from torchrec_qcomm.collectives.range_headers import RangeHeadersOf
from torchrec_qcomm.collectives.sums import add_layers, copy_twins
from torchrec_qcomm.collectives.views import bytes_of, same_storage, vectors_of
from torchrec_qcomm.errors import WireError, describe
from torchrec_qcomm.wire import Block, Layer, Side


def pack(
    values: torch.Tensor, side: Side, noise: Noise | None = None, range_headers_of: RangeHeadersOf | None = None
) -> torch.Tensor:
    """Encode ``values`` (``side.shape`` of ``side.dtype``) into the buffer of ``side``: ``uint8 [side.nbytes]``.

    It is the storage of ``values`` itself where the wire format is the tensor's own. Stochastic codecs need ``noise``;
    ``range_headers_of`` is asked once if a codec needs range headers.

    Raises:
        WireError: ``values`` has another shape or dtype than the layout, or nobody tells the ranges.
    """
    if tuple(values.shape) != side.shape or values.dtype != side.dtype:
        got, allowed = f"{values.dtype} {tuple(values.shape)}", f"{side.dtype} {side.shape}"
        raise WireError(describe("pack", "values do not fit the layout", got=got, allowed=allowed))
    values = values.contiguous()  # offsets are into a flat tensor; a no-op for a lookup and for most gradients
    if same_storage(side):
        return values.view(-1).view(torch.uint8)
    buffer = torch.empty(side.nbytes, dtype=torch.uint8, device=values.device)
    blocks = [block for layer in side.layers if layer.twin is None for block in layer.blocks]
    plain = ((block, _gathered(values, block), block.codec) for block in blocks if not block.range_headers)
    ranged = ((block, _gathered(values, block)) for block in blocks if block.range_headers)
    for block, rows, codec in chain(plain, range_headers.written(buffer, ranged, range_headers_of)):
        # Each block draws its own part of the stream: the one from the place of its bytes on.
        codec.encode(rows, out=bytes_of(buffer, block, side.dtype), noise=noise and noise.at(block.byte_offset << 32))
        del rows  # before the next ones are gathered
    copy_twins(buffer, side)
    return buffer


def _gathered(values: torch.Tensor, block: Block) -> torch.Tensor:
    """The block's vectors ``[rows, columns, dim]``."""
    if block.adjacent:
        return vectors_of(values, block)
    # One copy gathers the columns of a codec: a mixed policy costs one encode a codec and not one a table.
    return torch.stack([vectors_of(values, block, offset) for offset in block.offsets], dim=1)


def unpack(buffer: torch.Tensor, side: Side, values: torch.Tensor | None = None) -> torch.Tensor:
    """Decode the buffer of ``side`` (``uint8 [side.nbytes]``) into ``side.shape`` of ``side.dtype``.

    The result is ``values`` if given, written where the blocks are; else it is new or the storage of ``buffer``, and the blocks
    must cover it.
    """
    if values is None and same_storage(side):
        return buffer.view(side.dtype).view(side.shape)
    out = torch.empty(side.shape, dtype=side.dtype, device=buffer.device) if values is None else values
    if len(side.layers) == 1:
        _decode(buffer, side.dtype, side.layers[0], out)
    else:
        add_layers(side, out, partial(_decode, buffer, side.dtype), whole=values is None)
    return out


def _decode(buffer: torch.Tensor, dtype: torch.dtype, layer: Layer, values: torch.Tensor) -> None:
    """Decode a layer that was encoded from ``dtype`` into ``values``, of that dtype or FP32."""
    for block in layer.blocks:
        data = bytes_of(buffer, block, dtype)
        codec = block.codec.within(range_headers.read(buffer, block)) if block.range_headers else block.codec
        # All codecs but `none` decode to any dtype; rounding to 16 bits waits until after the sum.
        free = codec.row_bytes(block.dim, dtype) == codec.row_bytes(block.dim, values.dtype)
        if block.adjacent and free:
            codec.decode(data, block.dim, out=vectors_of(values, block))
            continue
        rows = codec.decode(data, block.dim, dtype=values.dtype if free else dtype)
        for i, offset in enumerate(block.offsets):  # the counterpart of the gather in `pack`
            vectors_of(values, block, offset).copy_(rows[:, i])
