"""What an output dist is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from torchrec_qcomm.collectives import Observers
from torchrec_qcomm.sharding.precision import Precision
from torchrec_qcomm.state.exchange import ExchangeState
from torchrec_qcomm.wire import Column, PooledLayout


@dataclass(frozen=True, slots=True, eq=False)
class CollectionSettings:
    """What all exchanges of one sharded collection share.

    Attributes:
        precision: the codecs in force.
        observers: told of every launch.
        state: what the exchanges remember.
    """

    precision: Precision
    observers: Observers = field(default_factory=Observers)
    state: ExchangeState = field(default_factory=ExchangeState)


@dataclass(frozen=True, slots=True, eq=False)
class HopSettings:
    """One byte all-to-all between the ranks of a group.

    Attributes:
        group: the process group.
        columns: for each rank of the group, the columns of its lookup.
        dtype: of every rank's lookup, and so of the result.
        collection: what it shares with the other exchanges of its collection.
        layout: `PooledLayout` where ranks own whole vectors, `ReduceLayout` where a vector is the sum of all ranks'.
        takers: for each batch in a lookup, the rank of the group that takes it; by default each rank its own.
        name: of the sharding; tells the state of this hop from that of others, together with its ranks.
    """

    group: dist.ProcessGroup
    columns: Sequence[Sequence[Column]]
    dtype: torch.dtype
    collection: CollectionSettings
    layout: type[PooledLayout] = PooledLayout
    takers: Sequence[int] | None = None
    name: str = ""
