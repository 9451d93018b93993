"""What plans with a number of rows for every column share: going along flat values and bytes, and adding up."""

from __future__ import annotations

from collections.abc import Sequence

from torchrec_qcomm.codecs import Codec
from torchrec_qcomm.errors import WireError, describe
from torchrec_qcomm.wire.layout import Block, Column, LinkT, PooledLayout
from torchrec_qcomm.wire.traffic import Cell

Site = tuple[Codec, int]


def sites_of(layout: PooledLayout[LinkT], columns: Sequence[Column], link: LinkT) -> list[Site]:
    """For each column, its codec and what a row of it takes on the wire."""
    found = [layout.codec_of(column.table, link=link) for column in columns]
    return [(codec, codec.row_bytes(column.dim, layout.dtype)) for codec, column in zip(found, columns, strict=True)]


def cells_of(columns: Sequence[Column], sites: Sequence[Site], sizes: Sequence[int]) -> dict[str, Cell]:
    """What so many rows of each column come to, by table."""
    found: dict[str, Cell] = {}
    for column, (_, row_bytes), rows in zip(columns, sites, sizes, strict=True):
        found[column.table] = found.get(column.table, Cell()) + Cell(rows * column.dim, rows * row_bytes)
    return found


def nbytes_of(cells: dict[str, Cell]) -> int:
    return sum(cell.wire_bytes for cell in cells.values())


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

    def add(self, columns: Sequence[Column], sites: Sequence[Site], sizes: Sequence[int]) -> None:
        """One batch."""
        for column, (codec, row_bytes), rows in zip(columns, sites, sizes, strict=True):
            self._block(codec, row_bytes, column.dim, rows)

    def _block(self, codec: Codec, row_bytes: int, dim: int, rows: int) -> None:
        last = self.blocks[-1] if self.blocks else None
        alike = last is not None and (last.codec, last.dim) == (codec, dim)
        if last is not None and alike and last.byte_offset + last.rows * row_bytes == self.byte:
            self.blocks[-1] = Block(codec, dim, last.rows + rows, last.offsets, dim, last.byte_offset, row_bytes)
        elif rows:
            self.blocks.append(Block(codec, dim, rows, (self.value,), dim, self.byte, row_bytes))
        self.value += rows * dim
        self.byte += rows * row_bytes
