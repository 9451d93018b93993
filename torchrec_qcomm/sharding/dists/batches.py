"""How many samples a lookup has of each rank; and the layout where every feature has batch sizes of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torchrec.distributed.embedding_sharding import EmbeddingShardingContext

from torchrec_qcomm.collectives import ExchangeLayout
from torchrec_qcomm.errors import WireError, describe
from torchrec_qcomm.sharding.dists.hop import Hop
from torchrec_qcomm.wire import ReduceLayout, variable


def batch_sizes(lookup: torch.Tensor, batches: int, context: EmbeddingShardingContext | None) -> tuple[int, ...]:
    """Samples of each of the batches in a lookup: those that TorchRec's input dist has left, else all alike.

    Raises:
        WireError: nothing was left, and the lookup does not divide into so many batches.
    """
    if context is not None and context.batch_size_per_rank:
        return tuple(context.batch_size_per_rank)
    if (total := lookup.size(0)) % batches:
        wrong = "the batch does not divide among the ranks"
        raise WireError(describe("quantized exchange", wrong, got=total, allowed=f"k * {batches}"))
    return (total // batches,) * batches


def variable_layout(hop: Hop, context: EmbeddingShardingContext) -> ExchangeLayout:
    """What this rank sends and receives, by the batch sizes that TorchRec's input dist has left in ``context``."""
    (forward, backward, _), me = hop.layouts(), hop.me
    # TorchRec sets no batch sizes on a rank without tables.
    to_owner = context.batch_size_per_rank_per_feature or [()] * len(forward.takers)
    if isinstance(forward, ReduceLayout):
        mine: list[Sequence[int]] = [list(chain(*forward.dealt(to_owner)[me]))] * len(forward.columns)
    else:
        mine = variable.by_owner(forward, context.batch_size_per_feature_pre_a2a)
    return ExchangeLayout(
        lookup_out=variable.owner_side(forward, me, to_owner),
        values_in=variable.sample_side(forward, me, mine),
        gradient_out=variable.sample_side(backward, me, mine),
        lookup_gradient_in=variable.owner_side(backward, me, to_owner),
    )
