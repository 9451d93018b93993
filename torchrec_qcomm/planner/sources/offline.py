"""A plan from a list of tables alone: TorchRec's planner on modules that hold no memory, with no process group and no data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import PlannerError as NativePlannerError
from torchrec.distributed.planner.types import ShardingOption, Stats
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from torchrec_qcomm.errors import PlannerError, describe
from torchrec_qcomm.planner.job import Job, Replicas
from torchrec_qcomm.planner.search.estimator import WireAwareEstimator, wire_aware_enumerator
from torchrec_qcomm.planner.search.topology import build_topology
from torchrec_qcomm.planner.sources.options import PlannerInputs, job_from_options, machines_of
from torchrec_qcomm.policy import Table

RESERVED = 0.15
"""Share of each device's memory that is kept free for other things, as TorchRec's planner does by default."""

_DATA_TYPES = {torch.float32: DataType.FP32, torch.float16: DataType.FP16, torch.bfloat16: DataType.BF16}


@dataclass(frozen=True, slots=True)
class ListedTable:
    """A table to make a model from, where there is none yet. Of a table in a model, `ModelTable` is what is known.

    Attributes:
        table: name, rows and dim.
        features: names of the features that look into it; none: one feature of the table's name.
        dtype: of its weights.
        pooled: whether it is of an EmbeddingBagCollection, and not of an EmbeddingCollection.
    """

    table: Table
    features: tuple[str, ...] = ()
    dtype: torch.dtype = torch.float32
    pooled: bool = True


class KeptPlan(Stats):
    """Keeps the chosen options of TorchRec's planner.

    Attributes:
        options: of the last plan; empty before.
    """

    def __init__(self) -> None:
        self.options: list[ShardingOption] = []

    def log(self, *args: Any, best_plan: list[ShardingOption], **kwargs: Any) -> None:
        """What the planner calls."""
        self.options = best_plan


def model_of(tables: Sequence[ListedTable]) -> nn.ModuleDict:
    """The collections that hold the tables, on the meta device: one ``ebc``, and an ``ec`` for each dim of sequences.

    TorchRec's EmbeddingCollection takes tables of one dim only.
    """
    meta = torch.device("meta")
    modules: dict[str, nn.Module] = {}
    if bags := [EmbeddingBagConfig(**_fields(each)) for each in tables if each.pooled]:
        modules["ebc"] = EmbeddingBagCollection(tables=bags, device=meta)
    dims = sorted({each.table.dim for each in tables if not each.pooled})
    for dim in dims:
        configs = [EmbeddingConfig(**_fields(each)) for each in tables if not each.pooled and each.table.dim == dim]
        modules["ec" if len(dims) == 1 else f"ec_{dim}"] = EmbeddingCollection(tables=configs, device=meta)
    return nn.ModuleDict(modules)


def job_from_tables(
    tables: Sequence[ListedTable],
    inputs: PlannerInputs,
    *,
    replicas: Replicas | None = None,
    estimator: WireAwareEstimator | None = None,
) -> Job:
    """The job of a plan that TorchRec's planner makes for a list of tables.

    Args:
        tables: all of them.
        inputs: for the planner; the topology is that of all ranks.
        replicas: for 2D parallelism. The plan is then for one sharding group, whose ranks lie on the hosts as all groups' do.
        estimator: says what an exchange costs; by default TorchRec's.

    Raises:
        PlannerError: there is no plan.
    """
    topology, batch_size = inputs.topology, inputs.batch_size
    (machines, _), assumed = machines_of(topology), []
    if replicas is not None:
        group = Job((), machines, batch_size, replicas=replicas).groups()[0]
        on_host, pod_hosts = group_shape(group, topology.local_world_size, machines.pod_hosts)
        if replicas.node_group_size is None:
            replicas = replace(replicas, node_group_size=on_host)
            assumed.append(f"2D: the job is told node_group_size={on_host}, the ranks that a sharding group has on a host")
        rates = machines.intra_host_gb_per_s, machines.inter_host_gb_per_s
        storage, device = topology.devices[0].storage, topology.compute_device
        memory_gb = (storage.ddr if device == "cpu" else storage.hbm) / 1e9
        on_host = replicas.node_group_size or on_host
        topology = build_topology(len(group), on_host, device, *rates, pod_hosts, memory_gb)
        inputs = replace(inputs, topology=topology)
    enumerator = None if estimator is None else wire_aware_enumerator(estimator, topology, batch_size, inputs.constraints)
    options = plan_options(model_of(tables), inputs, enumerator=enumerator)
    job = job_from_options(options, inputs, machines=machines, replicas=replicas)
    storage = topology.devices[0].storage
    memory = f"a device has {(storage.hbm or storage.ddr) / 2**30:g} GiB of memory, TorchRec's default"
    return replace(
        job,
        assumptions=(
            *job.assumptions,
            *assumed,
            "planned from a list of tables alone; the planner of a run sees the whole model, and may choose otherwise",
            f"{memory}, and {RESERVED:.0%} of it are left free",
        ),
    )


def plan_options(model: nn.Module, inputs: PlannerInputs, **planner_args: Any) -> list[ShardingOption]:
    """The option that TorchRec's planner chooses for each table, with ranks.

    Args:
        model: may be on the meta device.
        inputs: for the planner.
        planner_args: further arguments of ``EmbeddingShardingPlanner``: ``enumerator``, ``timeout_seconds``, ...

    Raises:
        PlannerError: the planner finds no plan. The message has the planner's own words.
    """
    kept, topology = KeptPlan(), inputs.topology
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=inputs.batch_size,
        constraints=dict(inputs.constraints),
        stats=kept,
        storage_reservation=FixedPercentageStorageReservation(RESERVED),
        **planner_args,
    )
    try:
        planner.plan(model, list(inputs.sharders))
    except NativePlannerError as error:
        wrong = f"TorchRec's planner finds no plan: {' '.join(str(error).split())}"
        shape = f"{topology.world_size} ranks, {topology.local_world_size} a host, {topology.compute_device}"
        todo = "Constrain less, plan for more devices, or make tables smaller."
        raise PlannerError(describe("plan", wrong, got=shape, todo=todo)) from error
    if not kept.options:
        allowed = "a model with tables that the sharders take"
        raise PlannerError(describe("plan", "nothing to shard", got=type(model).__name__, allowed=allowed))
    return kept.options


def group_shape(group: Sequence[int], devices_per_host: int, pod_hosts: int = 1) -> tuple[int, int]:
    """How a sharding group lies on the hosts: its ranks on each host, and how many of its hosts a pod has.

    >>> group_shape([0, 2, 4, 6], devices_per_host=4)
    (2, 1)

    Raises:
        PlannerError: hosts have different numbers of its ranks. TorchRec has no topology for that.
    """
    on_host = Counter(rank // devices_per_host for rank in group)
    if len(set(on_host.values())) > 1:
        wrong = "it has different numbers of ranks on different hosts"
        raise PlannerError(describe("2D: sharding group", wrong, got=list(group), allowed="as many on each host"))
    return on_host[group[0] // devices_per_host], min(pod_hosts, len(on_host))


def _fields(each: ListedTable) -> dict[str, Any]:
    return {
        "name": each.table.name,
        "num_embeddings": each.table.rows,
        "embedding_dim": each.table.dim,
        "feature_names": list(each.features or (each.table.name,)),
        "data_type": _DATA_TYPES[each.dtype],
    }
