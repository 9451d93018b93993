"""The range headers of a message: asked for, written before the rows, and read again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import torch

from torchrec_qcomm.codecs import Codec
from torchrec_qcomm.errors import WireError, describe
from torchrec_qcomm.wire import Block

RangedBlocks = Sequence[tuple[Block, torch.Tensor]]
"""Blocks whose codec needs range headers, each with its vectors ``[rows, columns, dim]``."""

RangeHeadersOf = Callable[[RangedBlocks], Sequence[torch.Tensor]]
"""Given all ranged blocks of a message, the range headers of each: ``uint8 [columns, codec.range_header_bytes]``."""


def written(
    buffer: torch.Tensor, blocks: Iterable[tuple[Block, torch.Tensor]], range_headers_of: RangeHeadersOf | None
) -> Iterator[tuple[Block, torch.Tensor, Codec]]:
    """Write the range headers of ``blocks`` to where the layout has them.

    Yields:
        Each block, its vectors, and its codec in the range that was written.

    Raises:
        WireError: there are such blocks, and nobody to ask.
    """
    ranged = list(blocks)
    if not ranged:
        return
    if range_headers_of is None:
        spec = ranged[0][0].codec.spec
        wrong = f"codec {spec} needs the range of each table"
        raise WireError(describe("pack: range_headers_of", wrong, got=None, allowed="a function"))
    for (block, rows), headers in zip(ranged, range_headers_of(ranged), strict=True):
        _write(buffer, block, headers)
        yield block, rows, block.codec.within(headers)


def _write(buffer: torch.Tensor, block: Block, headers: torch.Tensor) -> None:
    if (view := _evenly_spaced(buffer, block)) is not None and len(set(block.range_headers)) == len(block.range_headers):
        view.copy_(headers)
        return
    for column, offset in enumerate(block.range_headers):  # columns of one table share a header, and all write the same
        buffer[offset : offset + headers.shape[1]].copy_(headers[column])


def read(buffer: torch.Tensor, block: Block) -> torch.Tensor:
    """The range headers of a block's columns ``[columns, range_header_bytes]``."""
    view, size = _evenly_spaced(buffer, block), block.codec.range_header_bytes
    return torch.stack([buffer[offset : offset + size] for offset in block.range_headers]) if view is None else view


def _evenly_spaced(buffer: torch.Tensor, block: Block) -> torch.Tensor | None:
    """The range headers as a view of the buffer; ``None`` if their distances differ."""
    size = block.codec.range_header_bytes
    gaps = {after - before for before, after in pairwise(block.range_headers)} or {size}
    if len(gaps) > 1 or min(gaps) < 0:
        return None
    first = buffer.storage_offset() + block.range_headers[0]
    return buffer.as_strided((len(block.range_headers), size), (gaps.pop(), 1), first)
