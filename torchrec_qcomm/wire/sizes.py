"""What one table takes on the wire between two ranks: its rows, and one range header for all of them if the codec needs it.

The arithmetic that layouts and forecasts share. Numbers of rows may be arrays, which are then worked out element by element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np
import torch

from torchrec_qcomm.codecs import Codec
from torchrec_qcomm.wire.traffic import Cell

Rows = TypeVar("Rows", int, np.ndarray)


def rows_bytes(codec: Codec, dim: int, rows: Rows, dtype: torch.dtype) -> Rows:
    """Bytes of ``rows`` vectors of ``dim`` values of a payload of ``dtype``."""
    return rows * codec.row_bytes(dim, dtype)


def range_header_bytes(codec: Codec, rows: Rows) -> Rows:
    """Bytes of the range header of ``rows`` vectors of one table, whatever their dims; 0 where there is no row."""
    return (rows > 0) * codec.range_header_bytes


@dataclass(frozen=True, slots=True)
class RangeHeaders:
    """The range headers between two ranks. They follow each other, before all rows.

    Attributes:
        sizes: bytes of the range header of each table that has one.
        offsets: where each starts, counted from the first.
        nbytes: of all.
    """

    sizes: Mapping[str, int]
    offsets: Mapping[str, int]
    nbytes: int

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> RangeHeaders:
        """In the order of ``sizes``, the bytes of each table; tables with 0 bytes are left out."""
        present = {table: size for table, size in sizes.items() if size}
        ends = list(accumulate(present.values(), initial=0))
        return cls(present, dict(zip(present, ends, strict=False)), ends[-1])


def table_cell(row: Cell, rows: int, range_header: int) -> Cell:
    """What ``rows`` samples of a table come to between two ranks.

    Args:
        row: one sample of it.
        rows: samples.
        range_header: bytes of its range header, which is sent if there is any row.
    """
    return Cell(row.values * rows, row.wire_bytes * rows + (range_header if rows else 0))
