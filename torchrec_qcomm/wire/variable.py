"""The layout where every feature has a batch size of its own.

Values are flat then, and so are the bytes: for one rank after the other, one feature after the other, its vectors. Features
that are neighbours and share codec and dim are one block, also across ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from torchrec_qcomm.wire.flat import Walk, cells_of, nbytes_of, range_headers_of, require_one_each, row_formats
from torchrec_qcomm.wire.pooled import PooledLayout
from torchrec_qcomm.wire.reduce import ReduceLayout
from torchrec_qcomm.wire.terms import Layer, LinkT, Side


def by_owner(layout: PooledLayout[LinkT], numbers: Sequence[int], what: str = "batch size") -> list[Sequence[int]]:
    """Cut one rank's batch sizes (or numbers of ids), of every owner's columns in order, into those of each owner.

    Raises:
        WireError: there is not one for each column.
    """
    ends = [0, *accumulate(len(columns) for columns in layout.columns)]
    require_one_each([ends[-1]], [numbers], what)
    return [numbers[a:b] for a, b in pairwise(ends)]


def owner_side(layout: PooledLayout[LinkT], rank: int, batch_sizes: Sequence[Sequence[int]]) -> Side:
    """The owner's end.

    Args:
        layout: columns, codecs and links.
        rank: the owner, as a rank of the group.
        batch_sizes: for each batch of the lookup (by default, for each rank of the group), the samples of each of the owner's
            columns.

    Raises:
        WireError: there is not one for each batch and column.
    """
    columns = layout.columns[rank]
    require_one_each([len(columns)] * len(layout.takers), batch_sizes)
    links = [layout.link_of(rank, sample) for sample in range(len(layout.columns))]
    formats = {link: row_formats(layout, columns, link) for link in links}
    totals = [[sum(rows) for rows in zip(*batches, strict=True)] for batches in layout.dealt(batch_sizes)]
    cells = [cells_of(columns, formats[link], rows) for link, rows in zip(links, totals, strict=True)]
    splits = [nbytes_of(table) for table in cells]
    walk, position, headers = Walk(), list(accumulate(splits, initial=0)), []
    for taker, (link, rows) in enumerate(zip(links, totals, strict=True)):
        walk.byte = position[taker]
        headers.append(walk.pass_range_headers(range_headers_of(columns, formats[link], rows)))
        position[taker] = walk.byte
    for taker, sizes in zip(layout.takers, batch_sizes, strict=True):
        walk.byte = position[taker]
        walk.add(columns, formats[links[taker]], sizes, headers[taker])
        position[taker] = walk.byte
    return Side((walk.value,), layout.dtype, (Layer(tuple(walk.blocks), 0, sum(splits)),), tuple(splits), tuple(cells))


def sample_side(layout: PooledLayout[LinkT], rank: int, batch_sizes: Sequence[Sequence[int]]) -> Side:
    """The samples' end.

    Args:
        layout: columns, codecs and links. Of a `ReduceLayout`, every owner's bytes are a layer over the same values.
        rank: whose samples, as a rank of the group.
        batch_sizes: for each owner, this rank's samples of each of its columns; of several batches one after the other.

    Raises:
        WireError: there is not one for each owner and column.
    """
    own = layout.takers.count(rank)
    require_one_each([own * len(columns) for columns in layout.columns], batch_sizes)
    walk = Walk()
    layers, cells = [], []
    links = [layout.link_of(owner, rank) for owner in range(len(layout.columns))]
    for owner, (link, sizes) in enumerate(zip(links, batch_sizes, strict=True)):
        columns, start = layout.columns[owner] * own, walk.byte
        formats = row_formats(layout, columns, link)
        if isinstance(layout, ReduceLayout):
            walk.value, walk.blocks = 0, []
        walk.add(columns, formats, sizes, walk.pass_range_headers(range_headers_of(columns, formats, sizes)))
        cells.append(cells_of(columns, formats, sizes))
        if isinstance(layout, ReduceLayout):
            twin = next((i for i in range(owner) if links[i] == link), None)
            layers.append(Layer(tuple(walk.blocks), start, walk.byte - start, twin))
    layers = layers or [Layer(tuple(walk.blocks), 0, walk.byte)]
    return Side((walk.value,), layout.dtype, tuple(layers), tuple(nbytes_of(table) for table in cells), tuple(cells))
