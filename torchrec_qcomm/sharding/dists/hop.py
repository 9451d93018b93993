"""What every output dist has: a group, the layouts of both directions, and exchanges that it starts and counts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.distributed.types import Awaitable

from torchrec_qcomm.codecs.formats.one_range import OneRange
from torchrec_qcomm.collectives import Exchange, Plan
from torchrec_qcomm.policy import Direction, Link
from torchrec_qcomm.sharding.table_codecs import SiteCodecs
from torchrec_qcomm.sharding.traffic import Meters
from torchrec_qcomm.state.exchange import ExchangeState
from torchrec_qcomm.state.running_ranges import RunningRanges, Site
from torchrec_qcomm.wire import Column, PooledLayout, Side

_COLLECTIVE = "all_to_all"


class ExchangeAwaitable(Awaitable[torch.Tensor]):
    """TorchRec's handle on a started exchange. Neither waiting nor starting is for torch.compile, which would trace plans."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    @torch.compiler.disable
    def _wait_impl(self) -> torch.Tensor:
        return self._exchange.wait()


class Hop:
    """One byte all-to-all between the ranks of a group, each table in its own codecs.

    Args:
        group: the process group.
        columns: for each rank of the group, the columns of its lookup.
        dtype: of every rank's lookup, and so of the result.
        sites: the codecs.
        meters: where launches are counted.
        layout: `PooledLayout` where ranks own whole vectors, `ReduceLayout` where a vector is the sum of all ranks'.
        takers: for each batch in a lookup, the rank of the group that takes it; by default each rank its own.
        state: of the collection; by default, of this hop alone, and its step stays the first.
        name: of the sharding; tells the state of this hop from that of others, together with its ranks.

    Attributes:
        me: this rank, as a rank of the group.
        forward_layout, backward_layout: of the lookups, and of their gradients.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        columns: Sequence[Sequence[Column]],
        dtype: torch.dtype,
        sites: SiteCodecs,
        meters: Meters,
        layout: type[PooledLayout] = PooledLayout,
        takers: Sequence[int] | None = None,
        state: ExchangeState | None = None,
        name: str = "",
    ) -> None:
        self.group, self._dtype, self._meters = group, dtype, meters
        self._ranks = dist.get_process_group_ranks(group)
        self.me = group.rank()
        self._state = state or ExchangeState()
        # Of all groups that a rank is in, no two have the same first rank, last rank and size.
        self._name = f"{name}, ranks {self._ranks[0]} to {self._ranks[-1]}, {len(self._ranks)} in all"
        for table in {column.table for owned in columns for column in owned}:
            sites.check_payload(table, dtype)

        def link_of(owner: int, sample: int) -> Link:
            return sites.link(self._ranks[owner], self._ranks[sample])

        self.forward_layout, self.backward_layout = (
            layout(columns, partial(sites.codec, direction=direction), link_of, dtype, takers)
            for direction in (Direction.FORWARD, Direction.BACKWARD)
        )
        self._ranges: dict[str, RunningRanges] = {}
        for direction in Direction:
            ranged = self._ranged(sites, direction, columns)
            ranges = self._state.ranges_of(f"{self._name}/{direction}", self._ranks[self.me], ranged)
            if ranges is not None:
                self._ranges[str(direction)] = ranges

    def start(self, lookup: torch.Tensor, plan: Plan) -> ExchangeAwaitable:
        """Start the exchange of a lookup that is shaped as planned."""
        noise = self._state.noise(self._ranks[self.me], self._name)
        # Backward goes by what the forward was for.
        heads_of = {to: partial(ranges.heads, training=self._state.training) for to, ranges in self._ranges.items()}
        exchange = Exchange(self.group, plan, self._gradient_divisor, self._count, noise, heads_of)
        # A rank without tables looks up FP32 whatever the others do; TorchRec's own exchange is killed by that.
        exchange.start(lookup.to(self._dtype))
        return ExchangeAwaitable(exchange)

    def _ranged(self, sites: SiteCodecs, direction: Direction, columns: Sequence[Sequence[Column]]) -> set[Site]:
        """What this rank sends of tables whose rows share a range."""
        senders = [columns[self.me]] if direction == Direction.FORWARD else columns
        tables = {column.table for owned in senders for column in owned}
        found = ((table, sites.codec(table, direction, link)) for table in tables for link in Link)
        return {(table, codec) for table, codec in found if isinstance(codec, OneRange)}

    def _gradient_divisor(self) -> int:
        return self.group.size() if get_gradient_division() else 1

    def _count(self, direction: str, side: Side, buffer: torch.Tensor) -> None:
        for meter in self._meters.active:
            meter.count(_COLLECTIVE, direction, self._ranks, self._ranks[self.me], side, buffer)
