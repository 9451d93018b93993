"""The layout of a reduce-scatter: every rank owns rows of every table."""

from __future__ import annotations

from itertools import accumulate

from torchrec_qcomm.wire.pooled import PooledLayout
from torchrec_qcomm.wire.terms import Layer, LinkT, Side


class ReduceLayout(PooledLayout[LinkT]):
    """As `PooledLayout`, but the values of a sample are the sum of all lookups.

    A lookup goes out as there. At the samples' end the bytes of each owner are a layer of their own over the same values:
    forward they are decoded and added up, and backward every owner is sent the same gradients.
    """

    def _sample_side(self, rank: int, batch_size: int) -> Side:
        """The samples' end: ``[batch_size, sum of dims]``, one layer an owner."""
        wire_rows = [self.wire_row(owner, rank) for owner in range(len(self.columns))]
        splits = tuple(w.share(batch_size) for w in wire_rows)
        width = wire_rows[0].values
        layers: list[Layer] = []
        for i, (wire_row, share) in enumerate(zip(wire_rows, accumulate(splits, initial=0), strict=False)):
            twin = next((j for j in range(i) if wire_rows[j] == wire_row), None)
            blocks = wire_row.blocks(batch_size, 0, width, share + wire_row.range_headers.nbytes, share)
            layers.append(Layer(tuple(blocks), share, splits[i], twin))
        cells = tuple(w.counted(batch_size) for w in wire_rows)
        return Side((batch_size, width), self.dtype, tuple(layers), splits, cells)
