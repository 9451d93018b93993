"""The exchange over NCCL, with lookups and gradients on streams of their own."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torchrec.distributed.embedding_sharding import EmbeddingShardingContext

from tests.ranks import RankPool
from torchrec_qcomm import codecs
from torchrec_qcomm.policy import Policy, Rule, Table
from torchrec_qcomm.sharding.pooled import QCommPooledEmbeddingDist
from torchrec_qcomm.sharding.sites import SiteCodecs
from torchrec_qcomm.sharding.traffic import Meters
from torchrec_qcomm.wire import Column

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
    sites = SiteCodecs(policy.resolve(Table(table, 10, 10) for table in names), world, codecs.get)
    output_dist = QCommPooledEmbeddingDist(dist.group.WORLD, COLUMNS, torch.float32, sites, Meters())
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


def test_results_are_those_of_the_codecs(ranks: RankPool) -> None:
    assert ranks.run(2, over_nccl, backend="nccl") == [{"values": True, "gradients": True}] * 2
