"""The layout of an exchange of sequences: a vector for every id, not for every sample.

How many ids a feature has differs between batches and ranks, so both ends count them. On the wire the vectors of one rank stand
behind those of the other, and within a rank's share those of one codec together, whichever features they belong to, so that a
codec is called once for all of them:

    lookup of an owner       f0 of rank 0 | f0 of rank 1 | f1 of rank 0 | f1 of rank 1 | f2 of rank 0 | ...
    wire                     [rank 0: (codec A: f0, f2) (codec B: f1)] [rank 1: (codec A: f0, f2) (codec B: f1)]
    values of a sample rank  f0 of owner 0 | f1 of owner 0 | f2 of owner 0 | f0 of owner 1 | ...

The order of the pieces of one feature and rank on the wire is part of the layout; nothing about it is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from torchrec_qcomm.codecs import Codec
from torchrec_qcomm.wire.flat import Walk, cells_of, nbytes_of, range_headers_of, require_one_each, row_formats
from torchrec_qcomm.wire.pooled import PooledLayout
from torchrec_qcomm.wire.terms import Column, Layer, LinkT, Side
from torchrec_qcomm.wire.traffic import Cell

_WHAT = "number of ids"


@dataclass(frozen=True, slots=True)
class Pieces:
    """The vectors of one end, cut by feature and rank.

    Attributes:
        rows: of each piece, in the order of the tensor.
        wire_order: the pieces, as indices into ``rows``, in the order of the wire.
    """

    rows: tuple[int, ...]
    wire_order: tuple[int, ...]


def owner_side(layout: PooledLayout[LinkT], rank: int, counts: Sequence[Sequence[int]]) -> tuple[Side, Pieces]:
    """The owner's end: its lookup has feature after feature, and in each rank after rank.

    Args:
        layout: columns, codecs and links.
        rank: the owner, as a rank of the group.
        counts: for each rank of the group, the ids of each of the owner's columns.

    Returns:
        The side of the flat values in wire order, and how the lookup is cut.

    Raises:
        WireError: there is not one count for each rank and column.
    """
    columns, world = layout.columns[rank], len(layout.columns)
    require_one_each([len(columns)] * world, counts, _WHAT)
    share, order = _Shares(layout), []
    for sample in range(world):
        in_order = share.add(columns, layout.link_of(rank, sample), counts[sample])
        order += [column * world + sample for column in in_order]
    rows = tuple(counts[sample][column] for column in range(len(columns)) for sample in range(world))
    return share.side(), Pieces(rows, tuple(order))


def sample_side(layout: PooledLayout[LinkT], rank: int, counts: Sequence[Sequence[int]]) -> tuple[Side, Pieces]:
    """The samples' end: its values have owner after owner, and of each feature after feature.

    Args:
        layout: columns, codecs and links.
        rank: whose samples, as a rank of the group.
        counts: for each owner, this rank's ids of each of its columns.

    Returns:
        The side of the flat values in wire order, and how the values are cut.

    Raises:
        WireError: there is not one count for each owner and column.
    """
    require_one_each([len(columns) for columns in layout.columns], counts, _WHAT)
    share, order, before = _Shares(layout), [], 0
    for owner, columns in enumerate(layout.columns):
        order += [before + column for column in share.add(columns, layout.link_of(owner, rank), counts[owner])]
        before += len(columns)
    return share.side(), Pieces(tuple(count for owned in counts for count in owned), tuple(order))


class _Shares(Generic[LinkT]):
    """One rank's share after the other, of each the columns of one codec together."""

    def __init__(self, layout: PooledLayout[LinkT]) -> None:
        self._layout, self._walk = layout, Walk()
        self._cells: list[dict[str, Cell]] = []

    def add(self, columns: Sequence[Column], link: LinkT, counts: Sequence[int]) -> list[int]:
        """Add a share; return its columns in wire order."""
        formats = row_formats(self._layout, columns, link)
        groups: dict[tuple[Codec, int], int] = {}
        keys = [(form.codec, column.dim) for form, column in zip(formats, columns, strict=True)]
        for key in keys:
            groups.setdefault(key, len(groups))
        order = sorted(range(len(columns)), key=lambda column: groups[keys[column]])
        in_order = [columns[i] for i in order], [formats[i] for i in order], [counts[i] for i in order]
        self._walk.add(*in_order, self._walk.pass_range_headers(range_headers_of(*in_order)))
        self._cells.append(cells_of(columns, formats, counts))
        return order

    def side(self) -> Side:
        walk, cells = self._walk, self._cells
        layers = (Layer(tuple(walk.blocks), 0, walk.byte),)
        return Side((walk.value,), self._layout.dtype, layers, tuple(nbytes_of(table) for table in cells), tuple(cells))
