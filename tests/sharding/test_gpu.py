"""The exchange over NCCL, with lookups and gradients on streams of their own."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _remote_device
from torchrec.distributed.embedding_sharding import EmbeddingShardingContext
from torchrec.distributed.model_parallel import DMPCollection
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingPlan

from tests.ranks import RankPool
from tests.sharding.scenarios import entry_points
from tests.sharding.scenarios.hops import hop
from tests.sharding.scenarios.tables import TABLES, placed
from tests.sharding.test_entry_points import BY_LINK, TWO_HOSTS, bytes_by_link
from torchrec_qcomm import codecs
from torchrec_qcomm.collectives import Observers
from torchrec_qcomm.policy import Policy, Rule, Table
from torchrec_qcomm.sharding.dists.pooled import QCommPooledEmbeddingDist
from torchrec_qcomm.sharding.precision import TableCodecs
from torchrec_qcomm.sharding.traffic import measure_traffic
from torchrec_qcomm.wire import Column, Traffic

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]

COLUMNS = [[Column("a", 5), Column("b", 64), Column("a", 5)], [Column("c", 33)]]
SIZES = [300, 200]


def over_nccl(rank: int, world: int) -> dict[str, bool]:
    """Many exchanges, launched on one stream and waited for on another; is every result that of the codecs alone?"""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    names = {"a": "int4", "b": "int8", "c": "fp8_e4m3"}
    policy = Policy(rules=tuple(Rule(tables=table, forward=name, backward=name) for table, name in names.items()))
    sites = TableCodecs(policy.resolve(Table(table, 10, 10) for table in names), world, codecs.get)
    output_dist = QCommPooledEmbeddingDist(hop(dist.group.WORLD, COLUMNS, torch.float32, sites, Observers()))
    generators = [torch.Generator(device).manual_seed(i) for i in range(world)]
    launches, same = torch.cuda.Stream(), {"values": True, "gradients": True}

    def through(table: str, values: torch.Tensor) -> torch.Tensor:
        codec = codecs.get(names[table])
        return codec.decode(codec.encode(values), values.shape[-1])

    def each(values: torch.Tensor, columns: list[Column]) -> torch.Tensor:
        parts = values.split([column.dim for column in columns], dim=1)
        return torch.cat([through(column.table, part) for column, part in zip(columns, parts, strict=True)], dim=1)

    for _ in range(50):
        lookups = [
            torch.randn(sum(SIZES), sum(column.dim for column in owned), device=device, generator=generator)
            for owned, generator in zip(COLUMNS, generators, strict=True)
        ]
        mine = lookups[rank].clone().requires_grad_()
        launches.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(launches):
            awaitable = output_dist(mine, EmbeddingShardingContext(batch_size_per_rank=SIZES))
        torch.cuda.current_stream().wait_stream(launches)
        out = awaitable.wait()
        first = sum(SIZES[:rank])
        want = torch.cat(
            [each(full[first : first + SIZES[rank]], owned) for full, owned in zip(lookups, COLUMNS, strict=True)], 1
        )
        same["values"] &= torch.equal(out, want)
        out.backward(torch.full_like(out, rank + 1.0))
        gradients = torch.cat([torch.full((size, mine.shape[1]), i + 1.0, device=device) for i, size in enumerate(SIZES)])
        same["gradients"] &= torch.equal(mine.grad, each(gradients, COLUMNS[rank]) / world)
    return same


def in_two_dimensions(
    rank: int, world: int, policy: Policy, kind: str = "cuda", parallel: Any = DMPCollection
) -> dict[str, Any]:
    """Two groups of every other rank, two steps and a synchronisation: ours and TorchRec's own."""
    device = torch.device(kind)
    if kind == "cuda":
        device = torch.device(kind, rank)
        torch.cuda.set_device(device)
    entry_points.fresh_groups()
    runs, sent = [], Traffic()
    for each in (policy, None):
        plan = placed(TABLES, "table_wise", world // 2)
        for sharding in plan.values():
            for piece in sharding.sharding_spec.shards:
                piece.placement = _remote_device(f"rank:{piece.placement.rank()}/cuda:{piece.placement.rank()}")
        torch.manual_seed(0)
        model = DMPCollection(
            entry_points.Model(device=device),
            device,
            ShardingPlan({"bags": EmbeddingModuleShardingPlan(plan)}),
            world_size=world,
            sharding_group_size=world // 2,
            global_pg=dist.group.WORLD,
            sharders=entry_points.sharders_of(each),
        )
        entry_points.load_pieces(model.module.bags, entry_points.whole_weights())
        with measure_traffic(model) if each is not None else nullcontext() as meter:
            results = entry_points.trained(model, rank)
        sent = sent if meter is None else meter.gather()
        model.sync()
        runs.append((results, entry_points.shards_of(model)))
    (ours, shards), (native, native_shards) = runs
    return {
        "trained": entry_points.same(ours, native),
        "synchronised": entry_points.same(shards, native_shards),
        "moved": any(not torch.equal(shard, ours[str(key)]) for key, shard in shards.items()),
        "bytes": {way: sent.matrix(world, include_self=True, direction=way) for way in ("forward", "backward")},
    }


def test_results_are_those_of_the_codecs(ranks: RankPool) -> None:
    assert ranks.run(2, over_nccl, backend="nccl") == [{"values": True, "gradients": True}] * 2


four = pytest.mark.skipif(torch.cuda.device_count() < 4, reason="needs four CUDA devices")


@four
def test_two_dimensional_parallelism_equals_torchrecs(ranks: RankPool) -> None:
    for answer in ranks.run(4, in_two_dimensions, Policy(), backend="nccl", env=TWO_HOSTS):
        assert answer["trained"]
        assert answer["synchronised"]
        assert answer["moved"]


@four
def test_links_of_two_dimensional_parallelism_are_those_of_global_ranks(ranks: RankPool) -> None:
    for answer in ranks.run(4, in_two_dimensions, BY_LINK, backend="nccl", env=TWO_HOSTS):
        assert not answer["trained"]
        assert answer["bytes"] == bytes_by_link("table_wise")
