"""A table of two rows over four ranks, row-wise. TorchRec's lookup cannot do it on CPU, so one made by hand stands in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torchrec.distributed.embedding_sharding import EmbeddingShardingContext

from tests.ranks import RankPool
from tests.sharding.scenarios.hops import hop
from torchrec_qcomm import codecs
from torchrec_qcomm.collectives import Observers
from torchrec_qcomm.policy import Policy, Table
from torchrec_qcomm.sharding.dists.pooled import QCommPooledEmbeddingDist
from torchrec_qcomm.sharding.precision import TableCodecs
from torchrec_qcomm.wire import Column, ReduceLayout

DIM, ROWS, SIZES = 12, 2, (3, 1, 0, 2)


def exchanged(rank: int, world: int, codec: str) -> dict[str, Any]:
    """Ranks 0 and 1 own a row each, the others none: their lookups are zeros, and their gradients go nowhere."""
    sites = TableCodecs(Policy(codec, codec).resolve([Table("t", ROWS, DIM)]), world, codecs.get)
    columns = [[Column("t", DIM)]] * world
    output_dist: Any = QCommPooledEmbeddingDist(
        hop(dist.group.WORLD, columns, torch.float32, sites, Observers(), layout=ReduceLayout)
    )
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(ROWS, DIM, generator=generator)
    ids = torch.randint(0, ROWS, (sum(SIZES),), generator=generator)
    gradients = torch.randn(sum(SIZES), DIM, generator=generator)
    weight = table[rank : rank + 1].clone().requires_grad_()  # no row on ranks 2 and 3
    mine = (ids == rank).unsqueeze(1)
    lookup = mine * weight if len(weight) else torch.zeros(sum(SIZES), DIM, requires_grad=True)
    out = output_dist(lookup, EmbeddingShardingContext(batch_size_per_rank=list(SIZES))).wait()
    first = sum(SIZES[:rank])
    own = slice(first, first + SIZES[rank])
    out.backward(gradients[own])
    want = table[ids[own]]
    want_gradient = (mine * gradients).sum(0) / world
    bound = codecs.get(codec).error_bound
    slack = 2.0**-20 * (mine * gradients).abs().sum(0)
    return {
        "forward": bool(((out - want).abs() <= bound(want)).all()),
        "backward": not len(weight)
        or bool(((weight.grad[0] - want_gradient).abs() <= (mine * bound(gradients)).sum(0) + slack).all()),
        "differs": not torch.equal(out, want),
    }


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_ranks_without_rows_take_part(ranks: RankPool, codec: str) -> None:
    for rank, answer in enumerate(ranks.run(4, exchanged, codec)):
        assert answer["forward"]
        assert answer["backward"]
        assert answer["differs"] == (codec == "int8" and SIZES[rank] > 0)
