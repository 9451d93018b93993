"""A sum of decoded values is made in FP32: it may be larger than what the wire holds, and all of it is written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.ranks import RankPool
from tests.sharding.scenarios.hops import hop
from torchrec_qcomm import codecs
from torchrec_qcomm.collectives import Observers
from torchrec_qcomm.policy import Policy, Table
from torchrec_qcomm.sharding.dists.pooled import QCommPooledEmbeddingDist
from torchrec_qcomm.sharding.precision import TableCodecs
from torchrec_qcomm.wire import Column, ReduceLayout

DIM, BATCH = 40, 3


def summed(rank: int, world: int, codec: str, value: float) -> dict[str, Any]:
    """Every rank looks up ``value`` for everything, and is given ``value`` as gradient."""
    sites = TableCodecs(Policy(codec, codec).resolve([Table("t", 10, DIM)]), world, codecs.get)
    output_dist: Any = QCommPooledEmbeddingDist(
        hop(dist.group.WORLD, [[Column("t", DIM)]] * world, torch.float32, sites, Observers(), layout=ReduceLayout)
    )
    lookup = torch.full((world * BATCH, DIM), value, requires_grad=True)
    out = output_dist(lookup).wait()
    out.backward(torch.full_like(out, value))
    return {"sum": (float(out.min()), float(out.max())), "gradient": (float(lookup.grad.min()), float(lookup.grad.max()))}


@pytest.mark.parametrize(("codec", "error"), [("fp16", 1e-3), ("fp8_e4m3", 0.0625), ("int4", 0.005)])
def test_four_times_a_large_value(ranks: RankPool, codec: str, error: float) -> None:
    """Four times 30,000 is beyond FP16, which would overflow if codes were added; gradients are divided once decoded."""
    value = 3e4
    for answer in ranks.run(4, summed, codec, value):
        assert answer["sum"] == pytest.approx((4 * value, 4 * value), rel=error)
        assert answer["gradient"] == pytest.approx((value / 4, value / 4), rel=error)
