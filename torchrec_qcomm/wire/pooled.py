"""The byte plan of an exchange: the only place that does size arithmetic.

A pooled exchange moves, for every owner rank *o* and sample rank *s*, one wire row a sample of *s*:

    values of a row in the lookup of o      t0 t0 t0 | t1 t1 | t2 t2 t2 | ...      (columns, one a feature)
    the same row on the wire                [codec A: t0, t2] [codec B: t1]        (groups of one codec and dim)

Columns of one codec and dim stand together on the wire, so that a codec is called once for all of them. Rows to one
destination are contiguous, destinations follow each other in rank order. Both ends derive the plan from the same columns,
codecs and batch sizes, and nothing about it is sent.

Where the rows of a table share a range, that stands once before the first row that goes from one rank to another:

    bytes from o to s            [head of t0] [head of t2] [row of sample 0] [row of sample 1] ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Generic, TypeVar

import torch

from torchrec_qcomm.codecs import Codec
from torchrec_qcomm.wire.sizes import Heads, head_bytes, rows_bytes, table_cell
from torchrec_qcomm.wire.terms import Block, CodecOf, Column, Layer, LinkT, Side
from torchrec_qcomm.wire.traffic import Cell


@dataclass(frozen=True, slots=True)
class _Group:
    codec: Codec
    dim: int
    offsets: tuple[int, ...]
    byte_offset: int
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _WireRow:
    """One sample's bytes between an owner and a sample rank, and what stands once before those of all samples."""

    groups: tuple[_Group, ...]
    values: int
    nbytes: int
    cells: dict[str, Cell]
    heads: Heads

    def share(self, rows: int) -> int:
        """Bytes of so many samples."""
        return self.heads.nbytes + rows * self.nbytes if rows else 0

    def blocks(self, rows: int, offset: int, stride: int, byte_offset: int, share: int) -> list[Block]:
        """``share``: where the bytes between the two ranks start; the other numbers are those of a `Block`."""
        return [
            Block(
                group.codec,
                group.dim,
                rows,
                tuple(offset + o for o in group.offsets),
                stride,
                byte_offset + group.byte_offset,
                self.nbytes,
                group.tables if group.codec.segment_bytes else (),
                tuple(share + self.heads.offsets[table] for table in group.tables) if group.codec.segment_bytes else (),
            )
            for group in self.groups
            if rows
        ]

    def counted(self, rows: int) -> dict[str, Cell]:
        return {table: table_cell(cell, rows, self.heads.sizes.get(table, 0)) for table, cell in self.cells.items()}


@dataclass(slots=True)
class _Run:
    """Batches that follow each other in a lookup and on the wire, and are cut alike."""

    wire_row: _WireRow
    rows: int
    row: int
    byte: int
    share: int

    @property
    def end(self) -> int:
        return self.byte + self.rows * self.wire_row.nbytes


T = TypeVar("T")


class PooledLayout(Generic[LinkT]):
    """The plan of one direction of a pooled exchange, for any rank of the group and any batch sizes.

    Args:
        columns: for each owner rank, the columns of its lookup, in order.
        codec_of: the codec of a table on a link; called as ``codec_of(table, link=link)``.
        link_of: the link between an owner and a sample rank (ranks of the group); anything hashable.
        dtype: of the values; decides the bytes of the ``none`` codec.
        takers: for each batch in a lookup, in its order, the rank of the group that takes it; by default each rank its own.
            In the first of two hops a rank takes the batches of several ranks of the world: one behind the other on the wire
            and in its values, wherever they lie in the lookup.
    """

    def __init__(
        self,
        columns: Sequence[Sequence[Column]],
        codec_of: CodecOf[LinkT],
        link_of: Callable[[int, int], LinkT],
        dtype: torch.dtype,
        takers: Sequence[int] | None = None,
    ) -> None:
        self.columns = [tuple(owned) for owned in columns]
        self.codec_of, self.link_of, self.dtype = codec_of, link_of, dtype
        self.takers = tuple(range(len(self.columns)) if takers is None else takers)
        self._rows: dict[tuple[int, LinkT], _WireRow] = {}
        # Batch sizes rarely change between steps, and the plan of a large model takes longer to make than to look up.
        self.owner_side = lru_cache(maxsize=16)(self._owner_side)
        self.sample_side = lru_cache(maxsize=16)(self._sample_side)

    def _wire_row(self, owner: int, sample: int) -> _WireRow:
        key = (owner, self.link_of(owner, sample))
        if key not in self._rows:
            self._rows[key] = self._plan_row(*key)
        return self._rows[key]

    def _plan_row(self, owner: int, link: LinkT) -> _WireRow:
        columns = self.columns[owner]
        starts = [0, *accumulate(column.dim for column in columns)]
        members: dict[tuple[Codec, int], list[tuple[int, str]]] = {}
        cells: dict[str, Cell] = {}
        for column, start in zip(columns, starts, strict=False):
            codec = self.codec_of(column.table, link=link)
            members.setdefault((codec, column.dim), []).append((start, column.table))
            cell = Cell(column.dim, rows_bytes(codec, column.dim, 1, self.dtype))
            cells[column.table] = cells.get(column.table, Cell()) + cell
        groups, nbytes = [], 0
        sizes: dict[str, int] = {}
        for (codec, dim), found in members.items():
            offsets, tables = zip(*found, strict=True)
            groups.append(_Group(codec, dim, offsets, nbytes, tables))
            nbytes += rows_bytes(codec, dim, len(offsets), self.dtype)
            sizes |= dict.fromkeys(tables, head_bytes(codec, 1))
        return _WireRow(tuple(groups), starts[-1], nbytes, cells, Heads.of(sizes))

    def dealt(self, batches: Sequence[T]) -> list[list[T]]:
        """A lookup's batches, by the rank that takes them, in order."""
        by_taker: list[list[T]] = [[] for _ in self.columns]
        for taker, batch in zip(self.takers, batches, strict=True):
            by_taker[taker].append(batch)
        return by_taker

    def _owner_side(self, rank: int, batch_sizes: tuple[int, ...]) -> Side:
        """The owner's end: values ``[sum of batch_sizes, sum of rank's dims]``, batches in the order of the lookup.

        Args:
            rank: the owner, as a rank of the group.
            batch_sizes: samples of each batch of the lookup: by default, of each rank of the group.
        """
        wire_rows = [self._wire_row(rank, sample) for sample in range(len(self.columns))]
        samples = [sum(sizes) for sizes in self.dealt(batch_sizes)]
        splits = tuple(w.share(size) for w, size in zip(wire_rows, samples, strict=True))
        shares = list(accumulate(splits, initial=0))
        position = [share + w.heads.nbytes for w, share in zip(wire_rows, shares, strict=False)]
        runs: list[_Run] = []
        row = 0
        for taker, size in zip(self.takers, batch_sizes, strict=True):
            wire_row, byte = wire_rows[taker], position[taker]
            # Neighbours, in values and bytes, that share a wire row are encoded by one call.
            if runs and runs[-1].wire_row == wire_row and runs[-1].end == byte:
                runs[-1].rows += size
            elif size:
                runs.append(_Run(wire_row, size, row, byte, shares[taker]))
            row += size
            position[taker] += size * wire_row.nbytes
        width = sum(column.dim for column in self.columns[rank])
        blocks = [block for run in runs for block in run.wire_row.blocks(run.rows, run.row * width, width, run.byte, run.share)]
        return Side(
            shape=(row, width),
            dtype=self.dtype,
            layers=(Layer(tuple(blocks), 0, sum(splits)),),
            splits=splits,
            cells=tuple(w.counted(size) for w, size in zip(wire_rows, samples, strict=True)),
        )

    def _sample_side(self, rank: int, batch_size: int) -> Side:
        """The samples' end: values ``[batch_size, sum of all dims]``, owners' columns in rank order.

        Args:
            rank: whose samples, as a rank of the group.
            batch_size: how many samples, of all batches that it takes.
        """
        wire_rows = [self._wire_row(owner, rank) for owner in range(len(self.columns))]
        width = sum(w.values for w in wire_rows)
        blocks: list[Block] = []
        column = byte = 0
        for wire_row in wire_rows:
            blocks += wire_row.blocks(batch_size, column, width, byte + wire_row.heads.nbytes, byte)
            column += wire_row.values
            byte += wire_row.share(batch_size)
        return Side(
            shape=(batch_size, width),
            dtype=self.dtype,
            layers=(Layer(tuple(blocks), 0, byte),),
            splits=tuple(w.share(batch_size) for w in wire_rows),
            cells=tuple(w.counted(batch_size) for w in wire_rows),
        )


class ReduceLayout(PooledLayout[LinkT]):
    """The plan of a reduce-scatter: every rank owns rows of every table, and a sample's values are the sum of all lookups.

    A lookup goes out as in `PooledLayout`. At the samples' end every owner's bytes are a layer of their own over the same
    values: forward they are decoded and summed, and backward every owner is sent the same gradients.
    """

    def _sample_side(self, rank: int, batch_size: int) -> Side:
        """The samples' end: values ``[batch_size, sum of dims]``, one layer an owner."""
        wire_rows = [self._wire_row(owner, rank) for owner in range(len(self.columns))]
        width = wire_rows[0].values
        layers: list[Layer] = []
        byte = 0
        for i, wire_row in enumerate(wire_rows):
            nbytes = wire_row.share(batch_size)
            twin = next((j for j in range(i) if wire_rows[j] == wire_row), None)
            blocks = wire_row.blocks(batch_size, 0, width, byte + wire_row.heads.nbytes, byte)
            layers.append(Layer(tuple(blocks), byte, nbytes, twin))
            byte += nbytes
        return Side(
            shape=(batch_size, width),
            dtype=self.dtype,
            layers=tuple(layers),
            splits=tuple(layer.nbytes for layer in layers),
            cells=tuple(w.counted(batch_size) for w in wire_rows),
        )
