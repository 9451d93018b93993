"""What stands once before the rows of a table between two ranks: the range that they share, for codecs that need one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from torchrec_qcomm.wire.traffic import Cell


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
