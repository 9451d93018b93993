"""A model that TorchRec's planner plans, with the hook listening, and that real ranks then train a step of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.modules.embedding_configs import DataType

import torchrec_qcomm as qc
from tests.planner.predicting import Spy
from tests.sharding.scenarios.entry_points import world_env
from tests.sharding.scenarios.pooled_collections import CPU
from tests.sharding.scenarios.sequences import flat, sequence_collection
from tests.sharding.scenarios.tables import SGD, TableSpec, batch, collection
from torchrec_qcomm.planner.job import Job
from torchrec_qcomm.policy import Policy
from torchrec_qcomm.sharding import (
    QCommEmbeddingBagCollectionSharder,
    QCommEmbeddingCollectionSharder,
    measure_traffic,
)
from torchrec_qcomm.wire import Traffic

EVERYTHING = ["data_parallel", "table_wise", "column_wise", "table_column_wise", "row_wise", "table_row_wise", "grid_shard"]


class AllBags(QCommEmbeddingBagCollectionSharder):
    """Offers on CPU what there is on GPUs."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return EVERYTHING


class AllSequences(QCommEmbeddingCollectionSharder):
    """Likewise."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return EVERYTHING[1:5:1]


@dataclass(frozen=True)
class Run:
    """What is planned.

    Attributes:
        bags, sequences: with the kind of sharding of each.
        world, local: ranks, and those of a host.
        half: lookups are FP16.
    """

    policy: Policy
    bags: tuple[tuple[TableSpec, str], ...] = ()
    sequences: tuple[tuple[TableSpec, str], ...] = ()
    world: int = 4
    local: int = 2
    batch: int = 5
    weighted: bool = False
    hierarchical: bool = False
    half: bool = False
    sizes: tuple[int, ...] = ()

    def model(self) -> nn.ModuleDict:
        made: dict[str, nn.Module] = {}
        if self.bags:
            made["bags"] = collection([t for t, _ in self.bags], weighted=self.weighted)
        if self.sequences:
            made["sequences"] = sequence_collection([t for t, _ in self.sequences])
        return nn.ModuleDict(made)

    def batches(self, rank: int) -> dict[str, Any]:
        size = self.sizes[rank] if self.sizes else self.batch
        made = {}
        if self.bags:
            made["bags"] = batch([t for t, _ in self.bags], size, seed=rank, weighted=self.weighted)
        if self.sequences:
            made["sequences"] = batch([t for t, _ in self.sequences], size, seed=100 + rank)
        return made


def planned_and_run(rank: int, world: int, run: Run) -> tuple[Job, str, Traffic, list[int]]:
    """The hook's job and text, and what one step sends; the plan is made on every rank alike."""
    fused = {**SGD, **({"output_dtype": DataType.FP16} if run.half else {})}
    hosts = {"devices_per_host": run.local, "sharded_tables": set()}
    sharders = {
        "bags": AllBags(run.policy, hierarchical_row_wise=run.hierarchical, fused_params=fused, **hosts),
        "sequences": AllSequences(run.policy, fused_params=fused, **hosts),
    }
    constraints = {
        t.name: ParameterConstraints(
            sharding_types=[kind], min_partition=8, compute_kernels=["dense" if kind == "data_parallel" else "fused"]
        )
        for t, kind in (*run.bags, *run.sequences)
    }
    topology = Topology(world_size=world, local_world_size=run.local, compute_device="cpu")
    stats = qc.QCommStats()
    planner = EmbeddingShardingPlanner(topology=topology, batch_size=run.batch, constraints=constraints, stats=[stats])
    model = run.model()
    plan = planner.plan(model, list(sharders.values()))
    assert stats.analysis is not None
    env = world_env()
    sharded = nn.ModuleDict(
        {path: sharders[path].shard(module, plan.plan[path], env, CPU, module_fqn=path) for path, module in model.items()}
    )
    batches = run.batches(rank)
    for path in sharded:
        sharded[path](batches[path])
    with measure_traffic(sharded) as meter, Spy(world) as spy:
        for path, module in sharded.items():
            out = module(batches[path])
            values = out.values() if path == "bags" else flat(out)
            values.backward(torch.ones_like(values))
    return stats.analysis.forecast.job, str(stats.text), meter.gather(), spy.nbytes
