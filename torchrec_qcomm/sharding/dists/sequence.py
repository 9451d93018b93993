"""The output dist of sequences over the byte exchange: a vector for every id."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torchrec.distributed.dist_data import SequenceEmbeddingsAwaitable
from torchrec.distributed.embedding_sharding import BaseEmbeddingDist
from torchrec.distributed.sharding.sequence_sharding import SequenceShardingContext
from torchrec.distributed.types import Awaitable

from torchrec_qcomm.collectives import ExchangeLayout, from_wire, to_wire
from torchrec_qcomm.errors import WireError, describe
from torchrec_qcomm.sharding.dists.awaitable import ExchangeAwaitable
from torchrec_qcomm.sharding.dists.hop import Hop
from torchrec_qcomm.wire import Pieces, sequence, variable

Counts = Sequence[Sequence[int]]


class QCommSequenceEmbeddingDist(BaseEmbeddingDist[SequenceShardingContext, torch.Tensor, torch.Tensor]):
    """Moves the vectors of ids to the samples' ranks, and their gradients back, each table in its own codecs.

    Both ends need the number of ids of every feature and rank as numbers of the host: on a GPU, a transfer in every forward for
    what is sent, and row-wise another one for what is received.

    Args:
        hop: between which ranks; its columns are one a feature, all of one dim.
    """

    def __init__(self, hop: Hop) -> None:
        super().__init__()
        self._hop = hop

    @torch.compiler.disable
    def forward(
        self, local_embs: torch.Tensor, sharding_ctx: SequenceShardingContext | None = None
    ) -> SequenceEmbeddingsAwaitable:
        """Start the exchange of ``local_embs [ids looked up here, dim]``.

        Returns:
            An awaitable of ``[ids of this rank's samples, dim]``, in TorchRec's order and the dtype of the lookup.

        Raises:
            WireError: the context does not say how many ids each feature and rank has, or contradicts itself.
        """
        if sharding_ctx is None or sharding_ctx.lengths_after_input_dist is None:
            got = "no context" if sharding_ctx is None else "lengths_after_input_dist=None"
            raise WireError(describe("sequence exchange", "unknown how many ids there are", got=got, allowed="a full context"))
        hop, dim = self._hop, local_embs.size(1)
        sent, received = self._sent(sharding_ctx), self._received(sharding_ctx)
        forward, backward, _ = hop.layouts()
        lookup_out, lookup_there = sequence.owner_side(forward, hop.me, sent)
        values_in, values_there = sequence.sample_side(forward, hop.me, received)
        gradient_out, values_back = sequence.sample_side(backward, hop.me, received)
        lookup_gradient_in, lookup_back = sequence.owner_side(backward, hop.me, sent)
        layout = ExchangeLayout(lookup_out, values_in, gradient_out, lookup_gradient_in)
        started = hop.start(to_wire(local_embs, lookup_there, lookup_back).reshape(-1), layout)
        ordered = _InOrder(started, dim, values_there, values_back)
        return SequenceEmbeddingsAwaitable(ordered, sharding_ctx.unbucketize_permute_tensor, dim)

    def _sent(self, context: SequenceShardingContext) -> Counts:
        """For each rank of the group, the ids of each of my columns."""
        settings, me = self._hop.settings, self._hop.me
        world, features = settings.group.size(), len(settings.columns[me])
        lengths = context.lengths_after_input_dist
        sizes = list(context.batch_size_per_rank) or [lengths.size(1) // world] * world
        by_rank = [part.sum(dim=1) for part in lengths.view(features, -1).split(sizes, dim=1)] if features else []
        counts = torch.stack(by_rank).tolist() if by_rank else [[]] * world
        return self._checked(counts, context.output_splits, "ids looked up for each rank")

    def _received(self, context: SequenceShardingContext) -> Counts:
        """For each owner, my ids of each of its columns."""
        features = context.features_before_input_dist
        per_feature = features.length_per_key()
        if context.unbucketize_permute_tensor is None:
            counts: Counts = variable.by_owner(self._hop.layouts().forward, per_feature, "number of ids")
        else:
            counts = self._by_bucket(per_feature, context)
        return self._checked(counts, context.input_splits, "ids sent to each rank")

    def _by_bucket(self, per_feature: Sequence[int], context: SequenceShardingContext) -> Counts:
        """Row-wise, every owner has every feature, and TorchRec keeps only where each id has gone among all that were sent."""
        places, device = context.unbucketize_permute_tensor, context.unbucketize_permute_tensor.device
        world, count = self._hop.settings.group.size(), len(per_feature)
        bounds = torch.tensor(context.input_splits, device=device).cumsum(0)
        owner = torch.searchsorted(bounds, places.to(bounds.dtype), right=True)
        sizes = torch.tensor(per_feature, device=device)
        feature = torch.arange(count, device=device).repeat_interleave(sizes, output_size=places.numel())
        return torch.bincount(owner * count + feature, minlength=world * count).view(world, count).tolist()

    @staticmethod
    def _checked(counts: Counts, splits: Sequence[int], what: str) -> Counts:
        """Gloo leaves memory as it was where fewer bytes come than expected, and kills the process where more do."""
        if (sums := [sum(row) for row in counts]) != list(splits):
            wrong = f"{what} are not those of the input dist"
            raise WireError(describe("sequence exchange", wrong, got=sums, allowed=str(list(splits))))
        return counts


class _InOrder(Awaitable[torch.Tensor]):
    """The vectors that an exchange brings, in the order of owners and features."""

    def __init__(self, started: ExchangeAwaitable, dim: int, there: Pieces, back: Pieces) -> None:
        super().__init__()
        self._started, self._dim, self._there, self._back = started, dim, there, back

    @torch.compiler.disable
    def _wait_impl(self) -> torch.Tensor:
        return from_wire(self._started.wait().view(-1, self._dim), self._there, self._back)
