"""Pooled output dists over the byte exchange: one hop, or two for shardings that sum inside a host first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, compress

import torch
from torchrec.distributed.dist_data import PooledEmbeddingsAwaitable
from torchrec.distributed.embedding_sharding import BaseEmbeddingDist, EmbeddingShardingContext
from torchrec.distributed.types import Awaitable, NoWait

from torchrec_qcomm.collectives import Plan
from torchrec_qcomm.errors import WireError, describe
from torchrec_qcomm.sharding.dists.hop import Hop
from torchrec_qcomm.wire import ReduceLayout, variable


class QCommPooledEmbeddingDist(BaseEmbeddingDist[EmbeddingShardingContext, torch.Tensor, torch.Tensor]):
    """Moves pooled lookups to the samples' ranks, and their gradients back, each table in its own codecs.

    Args:
        hop: between which ranks, and in which layout.
        callbacks: applied to the result in order, as TorchRec's own dist does.
    """

    def __init__(self, hop: Hop, callbacks: Sequence[Callable[[torch.Tensor], torch.Tensor]] = ()) -> None:
        super().__init__()
        self._hop = hop
        self._callbacks = list(callbacks)

    @torch.compiler.disable
    def forward(
        self, local_embs: torch.Tensor, sharding_ctx: EmbeddingShardingContext | None = None
    ) -> PooledEmbeddingsAwaitable:
        """Start the exchange of ``local_embs [sum of batch sizes, sum of own dims]``, flat for variable batches.

        Returns:
            An awaitable of ``[own batch size, sum of all dims]``, or flat, in the dtype of the lookup.
        """
        by_feature = sharding_ctx is not None and sharding_ctx.variable_batch_per_feature
        # Of variable batches TorchRec's collection restores the order of columns itself.
        callbacks = [] if by_feature else self._callbacks
        if self._hop.group.size() == 1:
            return _awaitable(NoWait(local_embs), callbacks)
        plan = self.variable_plan(sharding_ctx) if by_feature else self.plan(self._batch_sizes(local_embs, sharding_ctx))
        if local_embs.numel() == 0:
            local_embs = local_embs.view(plan.lookup_out.shape)  # a rank without tables looks up a flat empty tensor
        return _awaitable(self._hop.start(local_embs, plan), callbacks)

    def plan(self, batch_sizes: tuple[int, ...]) -> Plan:
        """What this rank encodes and decodes when the batches of a lookup have these many samples."""
        mine = sum(self._hop.forward_layout.dealt(batch_sizes)[self._hop.me])
        return Plan(
            lookup_out=self._hop.forward_layout.owner_side(self._hop.me, batch_sizes),
            values_in=self._hop.forward_layout.sample_side(self._hop.me, mine),
            gradient_out=self._hop.backward_layout.sample_side(self._hop.me, mine),
            lookup_gradient_in=self._hop.backward_layout.owner_side(self._hop.me, batch_sizes),
        )

    def variable_plan(self, context: EmbeddingShardingContext) -> Plan:
        """The same where features have batch sizes of their own."""
        layout = self._hop.forward_layout
        # TorchRec sets no batch sizes on a rank without tables.
        to_owner = context.batch_size_per_rank_per_feature or [()] * len(layout.takers)
        if isinstance(layout, ReduceLayout):
            mine: list[Sequence[int]] = [list(chain(*layout.dealt(to_owner)[self._hop.me]))] * len(layout.columns)
        else:
            mine = variable.by_owner(layout, context.batch_size_per_feature_pre_a2a)
        return Plan(
            lookup_out=variable.owner_side(layout, self._hop.me, to_owner),
            values_in=variable.sample_side(layout, self._hop.me, mine),
            gradient_out=variable.sample_side(self._hop.backward_layout, self._hop.me, mine),
            lookup_gradient_in=variable.owner_side(self._hop.backward_layout, self._hop.me, to_owner),
        )

    def _batch_sizes(self, local_embs: torch.Tensor, context: EmbeddingShardingContext | None) -> tuple[int, ...]:
        if context is not None and context.batch_size_per_rank:
            return tuple(context.batch_size_per_rank)
        total, ranks = local_embs.size(0), len(self._hop.forward_layout.takers)
        if total % ranks:
            raise WireError(
                describe("quantized exchange", "the batch does not divide among the ranks", got=total, allowed=f"k * {ranks}")
            )
        return (total // ranks,) * ranks


class QCommTwoHopEmbeddingDist(BaseEmbeddingDist[EmbeddingShardingContext, torch.Tensor, torch.Tensor]):
    """A reduce-scatter inside each host, then an exchange across hosts; each hop in the codecs of its own link.

    In the first hop a rank takes, and sums, the values of all ranks of the world that have its local rank; in the second it
    passes them on to these, to each its own. Backward the other way round.

    Args:
        within: over the ranks of this host, whose lookups are summed.
        across: over the ranks of all hosts that have this local rank.
        order: the ranks of the world in the order in which a lookup has their samples.
        local_size: ranks in a host.
        local_rank: this rank among them.
    """

    def __init__(
        self,
        within: QCommPooledEmbeddingDist,
        across: QCommPooledEmbeddingDist,
        order: Sequence[int],
        local_size: int,
        local_rank: int,
    ) -> None:
        super().__init__()
        self._within, self._across, self._order = within, across, order
        self._taken = [rank % local_size == local_rank for rank in order]

    @torch.compiler.disable
    def forward(
        self, local_embs: torch.Tensor, sharding_ctx: EmbeddingShardingContext | None = None
    ) -> PooledEmbeddingsAwaitable:
        """Run the first hop, and start the second."""
        within = across = sharding_ctx
        if sharding_ctx is not None and sharding_ctx.variable_batch_per_feature:
            # In the order of the lookup, unlike the sizes of plain batches.
            sizes = sharding_ctx.batch_size_per_rank_per_feature
            across = replace(sharding_ctx, batch_size_per_rank_per_feature=list(compress(sizes, self._taken)))
        elif sharding_ctx is not None and sharding_ctx.batch_size_per_rank:
            in_order = [sharding_ctx.batch_size_per_rank[rank] for rank in self._order]
            within = replace(sharding_ctx, batch_size_per_rank=in_order)
            across = replace(sharding_ctx, batch_size_per_rank=list(compress(in_order, self._taken)))
        return self._across(self._within(local_embs, within).wait(), across)


def _awaitable(
    result: Awaitable[torch.Tensor], callbacks: Sequence[Callable[[torch.Tensor], torch.Tensor]]
) -> PooledEmbeddingsAwaitable:
    awaitable = PooledEmbeddingsAwaitable(result)
    awaitable.callbacks.extend(callbacks)
    return awaitable
