"""What plans with a number of rows for every column share: going along flat values and bytes, and adding up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torchrec_qcomm.codecs import Codec
from torchrec_qcomm.errors import WireError, describe
from torchrec_qcomm.wire.pooled import PooledLayout
from torchrec_qcomm.wire.sizes import Heads, head_bytes, rows_bytes, table_cell
from torchrec_qcomm.wire.terms import Block, Column, LinkT
from torchrec_qcomm.wire.traffic import Cell

Site = tuple[Codec, int]


def sites_of(layout: PooledLayout[LinkT], columns: Sequence[Column], link: LinkT) -> list[Site]:
    """For each column, its codec and what a row of it takes on the wire."""
    found = [layout.codec_of(column.table, link=link) for column in columns]
    return [(codec, rows_bytes(codec, column.dim, 1, layout.dtype)) for codec, column in zip(found, columns, strict=True)]


def heads_of(columns: Sequence[Column], sites: Sequence[Site], sizes: Sequence[int]) -> Heads:
    """What stands before so many rows of each column: a head for each table that has any, and whose codec needs one."""
    present = zip(columns, sites, sizes, strict=True)
    return Heads.of({column.table: head_bytes(codec, rows) for column, (codec, _), rows in present if rows})


def cells_of(columns: Sequence[Column], sites: Sequence[Site], sizes: Sequence[int]) -> dict[str, Cell]:
    """What so many rows of each column come to, heads included, by table."""
    found: dict[str, Cell] = {}
    for column, (_, row_bytes), rows in zip(columns, sites, sizes, strict=True):
        found[column.table] = found.get(column.table, Cell()) + table_cell(Cell(column.dim, row_bytes), rows, 0)
    for table, size in heads_of(columns, sites, sizes).sizes.items():
        found[table] += Cell(0, size)
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

    def open(self, heads: Heads) -> dict[str, int]:
        """Pass over the heads of a share; returns where in the buffer that of each table is."""
        found = {table: self.byte + offset for table, offset in heads.offsets.items()}
        self.byte += heads.nbytes
        return found

    def add(self, columns: Sequence[Column], sites: Sequence[Site], sizes: Sequence[int], heads: Mapping[str, int]) -> None:
        """One batch; ``heads``: where those of its share are."""
        for column, (codec, row_bytes), rows in zip(columns, sites, sizes, strict=True):
            head = heads.get(column.table)
            self._block(codec, row_bytes, column, rows, () if head is None else (head,))

    def _block(self, codec: Codec, row_bytes: int, column: Column, rows: int, heads: tuple[int, ...]) -> None:
        last = self.blocks[-1] if self.blocks else None
        tables = (column.table,) if heads else ()
        alike = last is not None and (last.codec, last.dim, last.heads) == (codec, column.dim, heads)
        if last is not None and alike and last.byte_offset + last.rows * row_bytes == self.byte:
            self.blocks[-1] = replace(last, rows=last.rows + rows)
        elif rows:
            offsets, stride = (self.value,), column.dim
            self.blocks.append(Block(codec, column.dim, rows, offsets, stride, self.byte, row_bytes, tables, heads))
        self.value += rows * column.dim
        self.byte += rows * row_bytes
