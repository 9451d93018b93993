"""The byte plan where every feature has a batch size of its own.

Values are flat then, and so are the bytes: for one rank after the other, one feature after the other, its vectors. Features
that are neighbours and share codec and dim are one block, also across ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from torchrec_qcomm.codecs import Codec
from torchrec_qcomm.errors import WireError, describe
from torchrec_qcomm.wire.layout import Block, Column, Layer, LinkT, PooledLayout, ReduceLayout, Side
from torchrec_qcomm.wire.traffic import Cell


def by_owner(layout: PooledLayout[LinkT], batch_sizes: Sequence[int]) -> list[Sequence[int]]:
    """Cut one rank's batch sizes, of every owner's columns in order, into those of each owner.

    Raises:
        WireError: there is not one for each column.
    """
    ends = [0, *accumulate(len(columns) for columns in layout.columns)]
    require_one_each([ends[-1]], [batch_sizes])
    return [batch_sizes[a:b] for a, b in pairwise(ends)]


def owner_side(layout: PooledLayout[LinkT], rank: int, batch_sizes: Sequence[Sequence[int]]) -> Side:
    """The owner's end.

    Args:
        layout: columns, codecs and links.
        rank: the owner, as a rank of the group.
        batch_sizes: for each rank of the group, the samples of each of the owner's columns.

    Raises:
        WireError: there is not one for each rank and column.
    """
    columns = layout.columns[rank]
    require_one_each([len(columns)] * len(layout.columns), batch_sizes)
    walk = Walk()
    for sample, sizes in enumerate(batch_sizes):
        walk.add(layout, columns, layout.link_of(rank, sample), sizes)
    return Side((walk.value,), layout.dtype, (Layer(tuple(walk.blocks), 0, walk.byte),), tuple(walk.splits), tuple(walk.cells))


def sample_side(layout: PooledLayout[LinkT], rank: int, batch_sizes: Sequence[Sequence[int]]) -> Side:
    """The samples' end.

    Args:
        layout: columns, codecs and links. Of a `ReduceLayout`, every owner's bytes are a layer over the same values.
        rank: whose samples, as a rank of the group.
        batch_sizes: for each owner, this rank's samples of each of its columns.

    Raises:
        WireError: there is not one for each owner and column.
    """
    require_one_each([len(columns) for columns in layout.columns], batch_sizes)
    walk, layers = Walk(), []
    links = [layout.link_of(owner, rank) for owner in range(len(layout.columns))]
    for owner, sizes in enumerate(batch_sizes):
        if isinstance(layout, ReduceLayout):
            start, walk.value, walk.blocks = walk.byte, 0, []
            walk.add(layout, layout.columns[owner], links[owner], sizes)
            twin = next((i for i in range(owner) if links[i] == links[owner]), None)
            layers.append(Layer(tuple(walk.blocks), start, walk.byte - start, twin))
        else:
            walk.add(layout, layout.columns[owner], links[owner], sizes)
    layers = layers or [Layer(tuple(walk.blocks), 0, walk.byte)]
    return Side((walk.value,), layout.dtype, tuple(layers), tuple(walk.splits), tuple(walk.cells))


def require_one_each(columns: Sequence[int], numbers: Sequence[Sequence[int]], what: str = "batch size") -> None:
    """Raise ``WireError`` unless there is a number for each of these columns."""
    if (got := [len(each) for each in numbers]) != list(columns):
        wrong = f"not one {what} for each column of each rank"
        raise WireError(describe("quantized exchange", wrong, got=got, allowed=str(list(columns))))


class Walk:
    """Goes along values and bytes, and cuts them into blocks."""

    def __init__(self) -> None:
        self.value = self.byte = 0
        self.blocks: list[Block] = []
        self.splits: list[int] = []
        self.cells: list[dict[str, Cell]] = []

    def add(self, layout: PooledLayout[LinkT], columns: Sequence[Column], link: LinkT, sizes: Sequence[int]) -> None:
        """One rank's share."""
        start = self.byte
        cells: dict[str, Cell] = {}
        for column, rows in zip(columns, sizes, strict=True):
            codec = layout.codec_of(column.table, link=link)
            row_bytes = codec.row_bytes(column.dim, layout.dtype)
            self._block(codec, column.dim, rows, row_bytes)
            cells[column.table] = cells.get(column.table, Cell()) + Cell(rows * column.dim, rows * row_bytes)
        self.splits.append(self.byte - start)
        self.cells.append(cells)

    def _block(self, codec: Codec, dim: int, rows: int, row_bytes: int) -> None:
        last = self.blocks[-1] if self.blocks else None
        if last is not None and (last.codec, last.dim) == (codec, dim):
            self.blocks[-1] = Block(codec, dim, last.rows + rows, last.offsets, dim, last.byte_offset, row_bytes)
        elif rows:
            self.blocks.append(Block(codec, dim, rows, (self.value,), dim, self.byte, row_bytes))
        self.value += rows * dim
        self.byte += rows * row_bytes
