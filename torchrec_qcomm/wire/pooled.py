"""The layout of a pooled exchange: which bytes go where. What they come to is worked out in `sizes`.

Every owner *o* sends every sample rank *s* one wire row for each sample of *s*, after the range headers that its codecs need:

    a sample in the lookup of o      t0 t0 t0 | t1 t1 | t2 t2 t2            (columns, one a feature)
    its row on the wire              [codec A: t0, t2] [codec B: t1]        (columns of one codec and dim: one codec call)
    bytes from o to s                [range of t0] [range of t2] [row of sample 0] [row of sample 1] ...

Destinations follow each other in rank order. Both ends work out the layout from the same columns, codecs and batch sizes;
nothing about it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Any, Generic, NamedTuple

import torch

from torchrec_qcomm.codecs import Codec
from torchrec_qcomm.wire.sizes import RangeHeaders, range_header_bytes, rows_bytes, table_cell
from torchrec_qcomm.wire.terms import Block, Column, Layer, LinkT, Side
from torchrec_qcomm.wire.traffic import Cell


@dataclass(frozen=True, slots=True)
class WireRow:
    """One sample between an owner and a sample rank: its blocks, as if it were all there is, and what it comes to."""

    row: tuple[Block, ...]
    values: int
    nbytes: int
    cells: dict[str, Cell]
    range_headers: RangeHeaders

    def share(self, rows: int) -> int:
        """Bytes of ``rows`` samples."""
        return self.range_headers.nbytes + rows * self.nbytes if rows else 0

    def counted(self, rows: int) -> dict[str, Cell]:
        """How much of each table ``rows`` samples are."""
        return {table: table_cell(cell, rows, self.range_headers.sizes.get(table, 0)) for table, cell in self.cells.items()}

    def blocks(self, rows: int, value: int, stride: int, byte: int, share: int) -> list[Block]:
        """``rows`` samples: their values start at ``value``, their bytes at ``byte``, the range headers at ``share``."""

        def moved(block: Block) -> Block:
            offsets = tuple(value + offset for offset in block.offsets)
            headers = tuple(share + offset for offset in block.range_headers)
            at = byte + block.byte_offset
            return replace(block, rows=rows, offsets=offsets, stride=stride, byte_offset=at, range_headers=headers)

        return [moved(block) for block in self.row] if rows else []


class _Batch(NamedTuple):
    """Samples in a lookup: the first row of their values, and where their bytes and the range headers before start."""

    wire_row: WireRow
    rows: int
    first: int
    byte: int
    share: int


class PooledLayout(Generic[LinkT]):
    """The layout of one direction, for any rank of the group and any batch sizes.

    Args:
        columns: for each owner rank, the columns of its lookup, in order.
        codec_of: the codec of a table on a link.
        link_of: the link between an owner and a sample rank (ranks of the group); anything hashable.
        takers: for each batch in a lookup, the rank of the group that takes it; by default each rank its own. In the first of
            two hops a rank takes several batches: they follow each other on the wire, wherever they are in the lookup.
    """

    def __init__(
        self,
        columns: Sequence[Sequence[Column]],
        codec_of: Callable[[str, LinkT], Codec],
        link_of: Callable[[int, int], LinkT],
        dtype: torch.dtype,
        takers: Sequence[int] | None = None,
    ) -> None:
        self.columns = [tuple(owned) for owned in columns]
        self.codec_of, self.link_of, self.dtype = codec_of, link_of, dtype
        self.takers = tuple(range(len(self.columns)) if takers is None else takers)
        self._wire_row_on = lru_cache(maxsize=None)(self._lay_out_row)
        # Batch sizes rarely change between steps, and a large layout takes longer to make than to look up.
        self.owner_side = lru_cache(maxsize=16)(self._owner_side)
        self.sample_side = lru_cache(maxsize=16)(self._sample_side)

    def wire_row(self, owner: int, sample: int) -> WireRow:
        """What ``owner`` sends for each sample of the rank ``sample``."""
        return self._wire_row_on(owner, self.link_of(owner, sample))

    def _lay_out_row(self, owner: int, link: LinkT) -> WireRow:
        members: dict[tuple[Codec, int], list[tuple[int, str]]] = {}
        cells: dict[str, Cell] = {}
        values = byte = 0
        for table, dim in ((column.table, column.dim) for column in self.columns[owner]):
            codec = self.codec_of(table, link)
            members.setdefault((codec, dim), []).append((values, table))
            cells[table] = cells.get(table, Cell()) + Cell(dim, rows_bytes(codec, dim, 1, self.dtype))
            values += dim
        headers = RangeHeaders.of({t: range_header_bytes(codec, 1) for (codec, _), found in members.items() for _, t in found})
        nbytes, row = sum(cell.wire_bytes for cell in cells.values()), []
        for (codec, dim), found in members.items():
            offsets, tables = zip(*found, strict=True)
            ranged = tables if codec.range_header_bytes else ()
            at = tuple(headers.offsets[table] for table in ranged)
            row.append(Block(codec, dim, 1, offsets, values, byte, nbytes, ranged, at))
            byte += rows_bytes(codec, dim, len(offsets), self.dtype)
        return WireRow(tuple(row), values, nbytes, cells, headers)

    def dealt(self, batches: Sequence[Any]) -> list[list[Any]]:
        """A lookup's batches, by the rank that takes them, in order."""
        by_taker: list[list[Any]] = [[] for _ in self.columns]
        for taker, batch in zip(self.takers, batches, strict=True):
            by_taker[taker].append(batch)
        return by_taker

    def _owner_side(self, rank: int, batch_sizes: tuple[int, ...]) -> Side:
        """The owner's end: ``[sum of batch_sizes, sum of own dims]``, batch by batch as in the lookup."""
        wire_rows = [self.wire_row(rank, sample) for sample in range(len(self.columns))]
        samples = [sum(sizes) for sizes in self.dealt(batch_sizes)]
        splits = tuple(w.share(size) for w, size in zip(wire_rows, samples, strict=True))
        shares = list(accumulate(splits, initial=0))
        position = [share + w.range_headers.nbytes for w, share in zip(wire_rows, shares, strict=False)]
        batches, first, width = [], 0, sum(column.dim for column in self.columns[rank])
        for taker, size in zip(self.takers, batch_sizes, strict=True):
            batches += [_Batch(wire_rows[taker], size, first, position[taker], shares[taker])] if size else []
            first, position[taker] = first + size, position[taker] + size * wire_rows[taker].nbytes
        blocks: list[Block] = []
        # Batches that follow each other in values and in bytes, and have one wire row, are encoded by one call.
        for _, run in groupby(batches, key=lambda batch: (batch.wire_row, batch.byte - batch.first * batch.wire_row.nbytes)):
            one, *others = run
            rows = one.rows + sum(other.rows for other in others)
            blocks += one.wire_row.blocks(rows, one.first * width, width, one.byte, one.share)
        cells = tuple(w.counted(size) for w, size in zip(wire_rows, samples, strict=True))
        return Side((first, width), self.dtype, (Layer(tuple(blocks), 0, sum(splits)),), splits, cells)

    def _sample_side(self, rank: int, batch_size: int) -> Side:
        """The samples' end: ``[batch_size, sum of all dims]``, the columns of owners in rank order."""
        wire_rows = [self.wire_row(owner, rank) for owner in range(len(self.columns))]
        splits = tuple(w.share(batch_size) for w in wire_rows)
        values, shares = (list(accumulate(sizes, initial=0)) for sizes in ((w.values for w in wire_rows), splits))
        blocks: list[Block] = []
        for wire_row, value, share in zip(wire_rows, values, shares, strict=False):
            blocks += wire_row.blocks(batch_size, value, values[-1], share + wire_row.range_headers.nbytes, share)
        cells = tuple(w.counted(batch_size) for w in wire_rows)
        return Side((batch_size, values[-1]), self.dtype, (Layer(tuple(blocks), 0, sum(splits)),), splits, cells)
