"""The pooled output dist over one byte all-to-all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torchrec.distributed.dist_data import PooledEmbeddingsAwaitable
from torchrec.distributed.embedding_sharding import BaseEmbeddingDist, EmbeddingShardingContext
from torchrec.distributed.types import NoWait

from torchrec_qcomm.collectives import ExchangeLayout
from torchrec_qcomm.sharding.dists.batches import batch_sizes, variable_layout
from torchrec_qcomm.sharding.dists.hop import Hop


class QCommPooledEmbeddingDist(BaseEmbeddingDist[EmbeddingShardingContext, torch.Tensor, torch.Tensor]):
    """Moves pooled lookups to the samples' ranks, and their gradients back, each table in its own codecs.

    As in TorchRec's own dist, ``callbacks`` are applied to the result, in order.
    """

    def __init__(self, hop: Hop, callbacks: Sequence[Callable[[torch.Tensor], torch.Tensor]] = ()) -> None:
        super().__init__()
        self._hop, self._callbacks = hop, list(callbacks)

    @torch.compiler.disable
    def forward(
        self, local_embs: torch.Tensor, sharding_ctx: EmbeddingShardingContext | None = None
    ) -> PooledEmbeddingsAwaitable:
        """Start the exchange of ``local_embs [sum of batch sizes, sum of own dims]``, flat for variable batches.

        Returns:
            An awaitable of ``[own batch size, sum of all dims]``, or flat, in the dtype of the lookup.
        """
        by_feature = sharding_ctx is not None and sharding_ctx.variable_batch_per_feature
        if self._hop.settings.group.size() == 1:
            awaitable = PooledEmbeddingsAwaitable(NoWait(local_embs))
        else:
            batches = len(self._hop.layouts().forward.takers)
            sizes = () if by_feature else batch_sizes(local_embs, batches, sharding_ctx)
            layout = variable_layout(self._hop, sharding_ctx) if by_feature else self.layout(sizes)
            # A rank without tables looks up a flat empty tensor.
            lookup = local_embs if local_embs.numel() else local_embs.view(layout.lookup_out.shape)
            awaitable = PooledEmbeddingsAwaitable(self._hop.start(lookup, layout))
        # Of variable batches TorchRec's collection restores the order of columns itself.
        awaitable.callbacks.extend(() if by_feature else self._callbacks)
        return awaitable

    def layout(self, sizes: tuple[int, ...]) -> ExchangeLayout:
        """What this rank sends and receives when the batches of a lookup have ``sizes`` samples."""
        (forward, backward, _), me = self._hop.layouts(), self._hop.me
        mine = sum(forward.dealt(sizes)[me])
        lookup_out, values_in = forward.owner_side(me, sizes), forward.sample_side(me, mine)
        return ExchangeLayout(lookup_out, values_in, backward.sample_side(me, mine), backward.owner_side(me, sizes))
