"""What one table takes on the wire between two ranks: rows, and once for all of them what the codec sends beside them.

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


def head_bytes(codec: Codec, rows: Rows) -> Rows:
    """Bytes that travel once for ``rows`` vectors of one table, whatever their dims: none where there is no row."""
    return (rows > 0) * codec.segment_bytes


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of one rank's share for another; one behind the other, before all rows.

    Attributes:
        sizes: bytes of each table that has one.
        offsets: where they are in the share.
        nbytes: of all.
    """

    sizes: Mapping[str, int]
    offsets: Mapping[str, int]
    nbytes: int

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> Heads:
        """In the order of ``sizes``, the bytes of each table; those of 0 bytes left out."""
        present = {table: size for table, size in sizes.items() if size}
        ends = list(accumulate(present.values(), initial=0))
        return cls(present, dict(zip(present, ends, strict=False)), ends[-1])


def table_cell(row: Cell, rows: int, head: int) -> Cell:
    """What ``rows`` samples of a table come to between two ranks.

    Args:
        row: one sample of it.
        rows: samples.
        head: bytes of its head, which travels if there is any row.
    """
    return Cell(row.values * rows, row.wire_bytes * rows + (head if rows else 0))
