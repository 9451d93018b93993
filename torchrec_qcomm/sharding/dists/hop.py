"""One byte all-to-all of an output dist: it starts exchanges in the precision in force."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torchrec.distributed.comm_ops import get_gradient_division

from torchrec_qcomm.collectives import Exchange, ExchangeLayout
from torchrec_qcomm.sharding.dists.awaitable import ExchangeAwaitable
from torchrec_qcomm.sharding.dists.layouts import Layouts, layouts_of, ranges_of
from torchrec_qcomm.sharding.dists.settings import HopSettings
from torchrec_qcomm.sharding.precision import TableCodecs


class Hop:
    """One byte all-to-all between the ranks of a group, each table in its own codecs; ``me`` is this rank of the group."""

    def __init__(self, settings: HopSettings) -> None:
        self.settings, self.me = settings, settings.group.rank()
        ranks = dist.get_process_group_ranks(settings.group)
        self._rank = ranks[self.me]
        # Of all groups that a rank is in, no two have the same first rank, last rank and size.
        self._name = f"{settings.name}, ranks {ranks[0]} to {ranks[-1]}, {len(ranks)} in all"
        self._made: dict[TableCodecs, Layouts] = {}
        self._in_force: TableCodecs | None = None
        self.layouts()  # refuses codecs that cannot carry a table's values; and ranges must be there when a state is loaded

    def layouts(self) -> Layouts:
        """The layouts of the precision in force, made once for each version of it."""
        codecs = self.settings.collection.precision.codecs
        if codecs is not self._in_force:
            layouts = self._made.get(codecs) or layouts_of(self.settings, codecs)
            self._made[codecs] = Layouts(layouts[0], layouts[1], ranges_of(self.settings, codecs, self._name))
            self._in_force = codecs
        return self._made[codecs]

    def start(self, lookup: torch.Tensor, layout: ExchangeLayout) -> ExchangeAwaitable:
        """Start the exchange of a lookup that is shaped as in ``layout``, which also holds for its backward."""
        settings, state = self.settings, self.settings.collection.state
        # Backward keeps or leaves the ranges as its forward did: in training or in evaluation.
        ranges = {to: partial(each.range_headers, training=state.training) for to, each in self.layouts().ranges.items()}
        noise = state.noise(self._rank, self._name)
        exchange = Exchange(settings.group, [layout], self._divisor, settings.collection.observers, noise, ranges)
        # A rank without tables looks up FP32 whatever the others do; TorchRec's own exchange is killed by that.
        exchange.start(lookup.to(settings.dtype))
        return ExchangeAwaitable(exchange)

    def _divisor(self) -> int:
        return self.settings.group.size() if get_gradient_division() else 1
