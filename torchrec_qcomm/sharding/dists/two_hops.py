"""The pooled output dist of shardings that sum inside a host first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import compress

import torch
from torchrec.distributed.dist_data import PooledEmbeddingsAwaitable
from torchrec.distributed.embedding_sharding import BaseEmbeddingDist, EmbeddingShardingContext

from torchrec_qcomm.sharding.dists.pooled import QCommPooledEmbeddingDist


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
