"""The byte plan of an exchange of sequences: a vector for every id, not for every sample.

How many ids a feature has differs between batches and ranks, so both ends count them. On the wire the vectors of one rank stand
behind those of the other, and within a rank's share those of one codec together, whichever features they belong to, so that a
codec is called once for all of them:

    lookup of an owner       f0 of rank 0 | f0 of rank 1 | f1 of rank 0 | f1 of rank 1 | f2 of rank 0 | ...
    wire                     [rank 0: (codec A: f0, f2) (codec B: f1)] [rank 1: (codec A: f0, f2) (codec B: f1)]
    values of a sample rank  f0 of owner 0 | f1 of owner 0 | f2 of owner 0 | f0 of owner 1 | ...

The order of the pieces of one feature and rank on the wire is part of the plan; nothing about it is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchrec_qcomm.codecs import Codec
from torchrec_qcomm.wire.layout import Column, Layer, LinkT, PooledLayout, Side
from torchrec_qcomm.wire.variable import Walk, require_one_each

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
    walk, order = Walk(), []
    for sample in range(world):
        order += [
            column * world + sample for column in _add(walk, layout, columns, layout.link_of(rank, sample), counts[sample])
        ]
    rows = tuple(counts[sample][column] for column in range(len(columns)) for sample in range(world))
    return _side(walk, layout), Pieces(rows, tuple(order))


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
    walk, order, before = Walk(), [], 0
    for owner, columns in enumerate(layout.columns):
        order += [before + column for column in _add(walk, layout, columns, layout.link_of(owner, rank), counts[owner])]
        before += len(columns)
    return _side(walk, layout), Pieces(tuple(count for owned in counts for count in owned), tuple(order))


def _add(
    walk: Walk, layout: PooledLayout[LinkT], columns: Sequence[Column], link: LinkT, counts: Sequence[int]
) -> Iterable[int]:
    """One rank's share, column by column in wire order, which is returned."""
    places: dict[tuple[Codec, int], int] = {}
    keys = [(layout.codec_of(column.table, link=link), column.dim) for column in columns]
    for key in keys:
        places.setdefault(key, len(places))
    order = sorted(range(len(columns)), key=lambda column: places[keys[column]])
    walk.add(layout, [columns[i] for i in order], link, [counts[i] for i in order])
    return order


def _side(walk: Walk, layout: PooledLayout[LinkT]) -> Side:
    layers = (Layer(tuple(walk.blocks), 0, walk.byte),)
    return Side((walk.value,), layout.dtype, layers, tuple(walk.splits), tuple(walk.cells))
