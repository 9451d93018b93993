"""Models and planners for tests of the hook; what runs on ranks is here, so that they can import it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology

import torchrec_qcomm as qc

DIMS = {"t_a": 32, "t_b": 64, "t_c": 12}
BATCH = 16


def model() -> nn.Module:
    """Three tables of bags, one of sequences."""
    meta = torch.device("meta")
    bags = [
        EmbeddingBagConfig(name=name, num_embeddings=1000, embedding_dim=dim, feature_names=[name[2:]])
        for name, dim in DIMS.items()
    ]
    ids = EmbeddingConfig(name="t_ids", num_embeddings=500, embedding_dim=16, feature_names=["ids"])
    return nn.ModuleDict(
        {"ebc": EmbeddingBagCollection(tables=bags, device=meta), "ec": EmbeddingCollection(tables=[ids], device=meta)}
    )


def planner(stats: Any, world: int = 4, local: int = 2, **topology: Any) -> EmbeddingShardingPlanner:
    """TorchRec's own, told to place tables whole."""
    constraints = {name: ParameterConstraints(sharding_types=["table_wise"]) for name in [*DIMS, "t_ids"]}
    machines = Topology(world_size=world, local_world_size=local, compute_device="cpu", **topology)
    return EmbeddingShardingPlanner(topology=machines, batch_size=BATCH, constraints=constraints, stats=stats)


def plan_together(rank: int, world: int) -> tuple[bool, bool, list[tuple[str, int]]]:
    """Whether this rank has a report, its text too, and the plan that all ranks have."""
    stats = qc.QCommStats()
    made = planner([stats], world, world).collective_plan(model(), qc.get_sharders(qc.Policy("int8")), dist.group.WORLD)
    ranks = [(name, sharding.ranks[0]) for name, sharding in sorted(made.plan["ebc"].items())]
    return stats.analysis is not None, stats.text is not None, ranks
