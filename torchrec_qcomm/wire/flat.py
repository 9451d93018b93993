"""What layouts share in which every column has a number of rows of its own: values and bytes are flat then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from torchrec_qcomm.codecs import Codec
from torchrec_qcomm.errors import WireError, describe
from torchrec_qcomm.wire.pooled import PooledLayout
from torchrec_qcomm.wire.sizes import RangeHeaders, range_header_bytes, rows_bytes, table_cell
from torchrec_qcomm.wire.terms import Block, Column, LinkT
from torchrec_qcomm.wire.traffic import Cell


class RowFormat(NamedTuple):
    """The codec of a column on a link, and the bytes of one row in it."""

    codec: Codec
    nbytes: int


def row_formats(layout: PooledLayout[LinkT], columns: Sequence[Column], link: LinkT) -> list[RowFormat]:
    """The format of each column."""
    found = [layout.codec_of(column.table, link) for column in columns]
    return [RowFormat(codec, rows_bytes(codec, c.dim, 1, layout.dtype)) for codec, c in zip(found, columns, strict=True)]


def range_headers_of(columns: Sequence[Column], formats: Sequence[RowFormat], sizes: Sequence[int]) -> RangeHeaders:
    """The range headers before ``sizes`` rows of the columns: one for each table that has rows and whose codec needs one."""
    present = zip(columns, formats, sizes, strict=True)
    return RangeHeaders.of({column.table: range_header_bytes(form.codec, rows) for column, form, rows in present if rows})


def cells_of(columns: Sequence[Column], formats: Sequence[RowFormat], sizes: Sequence[int]) -> dict[str, Cell]:
    """What ``sizes`` rows of the columns come to, range headers included, by table."""
    found: dict[str, Cell] = {}
    for column, form, rows in zip(columns, formats, sizes, strict=True):
        found[column.table] = found.get(column.table, Cell()) + table_cell(Cell(column.dim, form.nbytes), rows, 0)
    for table, size in range_headers_of(columns, formats, sizes).sizes.items():
        found[table] += Cell(0, size)
    return found


def nbytes_of(cells: dict[str, Cell]) -> int:
    """Wire bytes of all tables."""
    return sum(cell.wire_bytes for cell in cells.values())


def require_one_each(columns: Sequence[int], numbers: Sequence[Sequence[int]], what: str = "batch size") -> None:
    """Raise ``WireError`` unless there is a number for each of these columns."""
    if (got := [len(each) for each in numbers]) != list(columns):
        wrong = f"not one {what} for each column of each rank"
        raise WireError(describe("quantized exchange", wrong, got=got, allowed=str(list(columns))))


class Walk:
    """Goes along values and bytes, and cuts them into blocks.

    Attributes:
        value, byte: where it is.
        blocks: what it has cut so far.
    """

    def __init__(self) -> None:
        self.value = self.byte = 0
        self.blocks: list[Block] = []

    def pass_range_headers(self, headers: RangeHeaders) -> dict[str, int]:
        """Go to the end of the range headers of a share; returns where in the buffer that of each table starts."""
        found = {table: self.byte + offset for table, offset in headers.offsets.items()}
        self.byte += headers.nbytes
        return found

    def add(
        self, columns: Sequence[Column], formats: Sequence[RowFormat], sizes: Sequence[int], headers: Mapping[str, int]
    ) -> None:
        """Add one batch; ``headers`` says where the range headers of its share start, by table."""
        for column, form, rows in zip(columns, formats, sizes, strict=True):
            self._add_rows(column, form, rows, headers.get(column.table))

    def _add_rows(self, column: Column, form: RowFormat, rows: int, header: int | None) -> None:
        last = self.blocks[-1] if self.blocks else None
        tables, headers = ((), ()) if header is None else ((column.table,), (header,))
        alike = last is not None and (last.codec, last.dim, last.range_headers) == (form.codec, column.dim, headers)
        if last is not None and alike and last.byte_offset + last.rows * form.nbytes == self.byte:
            self.blocks[-1] = replace(last, rows=last.rows + rows)
        elif rows:
            where = (self.value,), column.dim, self.byte, form.nbytes
            self.blocks.append(Block(form.codec, column.dim, rows, *where, tables, headers))
        self.value += rows * column.dim
        self.byte += rows * form.nbytes
