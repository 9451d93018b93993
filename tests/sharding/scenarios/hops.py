"""A hop with no collection around it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from torchrec_qcomm.collectives import Observers
from torchrec_qcomm.sharding.dists.hop import Hop
from torchrec_qcomm.sharding.dists.settings import CollectionSettings, HopSettings
from torchrec_qcomm.sharding.precision import Precision, TableCodecs
from torchrec_qcomm.wire import Column, PooledLayout


def hop(
    group: dist.ProcessGroup,
    columns: Sequence[Sequence[Column]],
    dtype: torch.dtype,
    codecs: TableCodecs,
    observers: Observers,
    layout: type[PooledLayout] = PooledLayout,
) -> Hop:
    """As the shardings make it; its state is its own."""
    return Hop(HopSettings(group, columns, dtype, CollectionSettings(Precision(codecs), observers), layout))
