"""What a quantized reduce-scatter moves, beside the least that FP32 could: every rank's part of every other rank's samples."""

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
from torchrec_qcomm.sharding.traffic import TrafficMeter
from torchrec_qcomm.wire import Column, ReduceLayout

DIM, BATCH, TABLES = 128, 6, 3


def measured(rank: int, world: int, codec: str) -> dict[str, int]:
    """Bytes that left ranks in one step, by direction."""
    names = [f"t{i}" for i in range(TABLES)]
    sites = TableCodecs(Policy(codec, codec).resolve(Table(name, 100, DIM) for name in names), world, codecs.get)
    observers, meter = Observers(), TrafficMeter()
    observers.active.append(meter)
    columns = [[Column(name, DIM) for name in names]] * world
    output_dist: Any = QCommPooledEmbeddingDist(
        hop(dist.group.WORLD, columns, torch.float32, sites, observers, layout=ReduceLayout)
    )
    lookup = torch.randn(world * BATCH, TABLES * DIM, requires_grad=True)
    out = output_dist(lookup).wait()
    out.backward(torch.randn_like(out))
    everyone = meter.gather()
    return {direction: everyone.wire_bytes(direction=direction) for direction in ("forward", "backward")}


@pytest.mark.parametrize(("codec", "share"), [("int8", 0.27), ("int4", 0.14)])
def test_row_wise_moves_a_share_of_an_ideal_reduce_scatter(ranks: RankPool, codec: str, share: float) -> None:
    world = 4
    ideal = world * (world - 1) * BATCH * TABLES * DIM * 4
    for answer in ranks.run(world, measured, codec):
        for direction in ("forward", "backward"):
            assert 0 < answer[direction] <= share * ideal
