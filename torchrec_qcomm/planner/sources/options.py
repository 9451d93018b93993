"""From the sharding options that TorchRec's planner chose to a job.

What a plan does not say is assumed, and every assumption becomes a sentence of the job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import nn
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.distributed.planner.enumerators import get_partition_by_type
from torchrec.distributed.planner.types import Shard, ShardingOption
from torchrec.distributed.types import ModuleSharder, ParameterSharding, ShardingPlan
from torchrec.modules.embedding_configs import data_type_to_dtype
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection

from torchrec_qcomm.errors import PlannerError, describe
from torchrec_qcomm.planner.job import Job, Machines, PlannedTable, Replicas
from torchrec_qcomm.planner.kinds import kind_of
from torchrec_qcomm.planner.search.tables import model_tables
from torchrec_qcomm.planner.search.topology import BYTES_PER_MS
from torchrec_qcomm.planner.sources.shards import ranks_of
from torchrec_qcomm.policy import Policy, Table

Sharders = Sequence[ModuleSharder[nn.Module]]


@dataclass(frozen=True, slots=True)
class PlannerInputs:
    """What TorchRec's planner is given, besides a model.

    Attributes:
        topology: the machines that a plan is made for; they need not be here.
        batch_size: samples of a rank.
        sharders: that the model is sharded with. They say what a lookup's dtype is, and which tables TorchRec exchanges itself.
        constraints: by table name. A plan does not hold the numbers of bags, batch sizes by feature and weights that they name.
        pooling_known: names of tables whose pooling factors somebody gave; a plan does not tell a given 1 from a default.
    """

    topology: Topology
    batch_size: int
    sharders: Sharders = ()
    constraints: Mapping[str, ParameterConstraints] = field(default_factory=dict)
    pooling_known: Collection[str] = ()


def job_from_options(
    options: Sequence[ShardingOption],
    inputs: PlannerInputs,
    policy: Policy | None = None,
    *,
    hierarchical_row_wise: bool | None = None,
    machines: Machines | None = None,
    replicas: Replicas | None = None,
) -> Job:
    """The job that a plan is for.

    Args:
        options: the planner's best plan: one option a table, its shards with their ranks.
        inputs: what the planner was given.
        policy: the codecs; by default that of the sharders.
        hierarchical_row_wise: by default as the sharders say.
        machines: by default those of the topology. With ``replicas`` those of all groups together.
        replicas: with 2D parallelism; ranks of the plan are then those of one sharding group.

    Raises:
        PlannerError: there is no plan, or it does not fit the machines or the modules.
    """
    if not options or any(shard.rank is None or shard.rank < 0 for option in options for shard in option.shards):
        got = sorted({shard.rank for option in options for shard in option.shards}, key=str)
        wrong = "there is no plan: TorchRec's planner found none, and no shard has a rank"
        todo = "See what the planner says: mostly the tables do not fit into the memory of the topology."
        raise PlannerError(describe("plan", wrong, got=got, allowed="a rank for every shard", todo=todo))
    machines, assumed = (machines, []) if machines else machines_of(inputs.topology)
    sharders, batch_size = inputs.sharders, inputs.batch_size
    by_type = {_type_key(sharder.module_type): sharder for sharder in sharders}
    policy = policy_of(sharders) if policy is None else policy
    tables, alone, coded = [], [], []
    for option in options:
        sharder = by_type.get(option.module_type_key)
        tables.append(_planned(option, inputs.constraints.get(option.name), sharder, batch_size, assumed))
        if sharder is not None and _ours(sharder) is None:
            alone.append(option.name)
            coded += [option.name] if getattr(sharder, "qcomm_codecs_registry", None) else []
    if hierarchical_row_wise is None:
        hierarchical_row_wise = any(getattr(_ours(sharder), "hierarchical_row_wise", False) for sharder in sharders)
    if alone:
        assumed.append(f"exchanged by TorchRec itself, so moved as they are whatever the policy says: {_some(alone)}")
    if coded:
        assumed.append(f"counted as moved as they are, though their sharder has codecs of TorchRec: {_some(coded)}")
    names = [table.table.name for table in tables if set(table.pooling) == {1.0}]
    if plain := [name for name in names if name not in inputs.pooling_known]:
        assumed.append(f"pooling factor 1 (a feature has one id a sample), TorchRec's if none is given, for {_some(plain)}")
    job = Job(
        _one_payload(tables),
        machines,
        batch_size,
        hierarchical_row_wise=hierarchical_row_wise,
        replicas=replicas,
        assumptions=tuple(dict.fromkeys(assumed)),
        untouched=tuple(dict.fromkeys(alone)),
    ).under(policy)
    check_ranks(job)
    return replace(job, planned_memory=_memory(options, job))


def options_of(plan: ShardingPlan, model: nn.Module, inputs: PlannerInputs) -> list[ShardingOption]:
    """The options that a plan came from, as far as it tells: without memory, and with pooling factors from the constraints.

    Args:
        plan: what ``collective_plan`` returns.
        model: not sharded yet.
        inputs: what the planner was given.

    Raises:
        PlannerError: the plan is not of this model and these sharders.
    """
    modules = dict(model.named_modules())
    by_type = {_type_key(sharder.module_type): sharder for sharder in inputs.sharders}
    options = []
    for path, tables in plan.plan.items():
        module = modules.get(path)
        sharder = by_type.get(_type_key(type(module)))
        if module is None or sharder is None:
            wrong = "the plan shards what is no such module of the model" if module is None else "no sharder takes this module"
            todo = "Give the plan's model before it is sharded, and the sharders of the plan."
            got, allowed = path if module is None else type(module).__name__, modules if module is None else by_type
            raise PlannerError(describe(f"plan: module {path!r}", wrong, got=got, allowed=allowed, todo=todo))
        weights = sharder.shardable_parameters(module)
        for name, sharding in tables.items():
            if name not in weights:
                where, wrong = f"plan: module {path!r}", "the plan has a table that the module has not"
                raise PlannerError(describe(where, wrong, got=name, allowed=weights))
            given = getattr(inputs.constraints.get(name), "pooling_factors", None)
            option = ShardingOption(
                name=name,
                tensor=weights[name],
                module=(path, module),
                input_lengths=given or [1.0],
                batch_size=inputs.batch_size,
                sharding_type=sharding.sharding_type,
                partition_by=get_partition_by_type(sharding.sharding_type),
                compute_kernel=sharding.compute_kernel,
                shards=_shards(sharding, weights[name]),
                output_dtype=sharding.output_dtype,
            )
            options.append(option)
    return options


def _shards(sharding: ParameterSharding, weight: torch.Tensor) -> list[Shard]:
    spec = sharding.sharding_spec
    if spec is None:  # data-parallel
        return [Shard(list(weight.shape), [0, 0], rank=rank) for rank in sharding.ranks or ()]
    return [Shard(s.shard_sizes, s.shard_offsets, rank=rank) for s, rank in zip(spec.shards, ranks_of(sharding), strict=True)]


def machines_of(topology: Topology) -> tuple[Machines, list[str]]:
    """The machines of a TorchRec topology, and what had to be assumed of them."""
    world, local = topology.world_size, topology.local_world_size
    machines = Machines(
        world,
        local,
        max(1, topology.intra_group_size // local),
        topology.intra_host_bw / BYTES_PER_MS,
        topology.inter_host_bw / BYTES_PER_MS,
        topology.compute_device,
    )
    one_host = (
        f"all {world} ranks share a host, as TorchRec's topology says; it says so, too, if it is given no local_world_size"
    )
    return machines, [one_host] if world == local > 1 else []


def policy_of(sharders: Iterable[Any]) -> Policy:
    """The policy that sharders of this package carry; one that codes nothing if none does.

    Raises:
        PlannerError: they carry several.
    """
    policies = list(dict.fromkeys(ours.policy for sharder in sharders if (ours := _ours(sharder)) is not None))
    if len(policies) > 1:
        todo = "Give the policy that the forecast is to be made with."
        raise PlannerError(describe("sharders", "they have different policies", got=policies, allowed="one policy", todo=todo))
    return policies[0] if policies else Policy()


def check_ranks(job: Job) -> None:
    """Raise ``PlannerError`` if a shard is on a rank that a sharding group has not."""
    size = len(job.groups()[0])
    for table in job.tables:
        if len(table.ranks) and not 0 <= int(table.ranks.min()) <= int(table.ranks.max()) < size:
            wrong = "a shard is on a rank that there is not"
            group = "the ranks of a sharding group" if job.replicas else "the ranks"
            where = f"plan: table {table.table.name!r}"
            raise PlannerError(describe(where, wrong, got=table.ranks.tolist(), allowed=f"{group}: 0 to {size - 1}"))


def _ours(sharder: Any) -> Any | None:
    """The sharder with the policy: this one if it is of this package, or the one that a sharder of TorchRec holds."""
    for inner in (sharder, *getattr(sharder, "__dict__", {}).values()):
        if isinstance(getattr(inner, "policy", None), Policy):
            return inner
    return None


def _type_key(kind: type) -> str:
    return f"{kind.__module__}.{kind.__name__}"


def _planned(
    option: ShardingOption,
    constraint: ParameterConstraints | None,
    sharder: ModuleSharder[nn.Module] | None,
    batch_size: int,
    assumed: list[str],
) -> PlannedTable:
    rows, dim = option.tensor.shape
    features = _features(option)
    poolings = option.num_poolings or getattr(constraint, "num_poolings", None) or [1.0]
    bags = _each(option.name, "numbers of bags", poolings, features, assumed)
    if batch_sizes := getattr(constraint, "batch_sizes", None):
        sizes = _each(option.name, "batch sizes", batch_sizes, features, assumed)
        bags = tuple(number * size / batch_size for number, size in zip(bags, sizes, strict=True))
    kind = kind_of(option.sharding_type)
    shards = option.shards if kind.hops else []
    weighted = option.is_weighted if option.is_weighted is not None else getattr(constraint, "is_weighted", False)
    if isinstance(option.module[1], FeatureProcessedEmbeddingBagCollection):
        # The rank that has the rows makes the weights. Where rows are dealt out, they are made before, and travel with the ids.
        weighted = kind.rows_dealt_out
    return PlannedTable(
        table=Table(option.name, rows, dim),
        module=option.path,
        features=features,
        pooling=_each(option.name, "pooling factors", option.input_lengths, features, assumed),
        sharding_type=option.sharding_type,
        ranks=_ints(shard.rank for shard in shards),
        shard_rows=_ints(shard.size[0] for shard in shards),
        shard_dims=_ints(shard.size[1] for shard in shards),
        row_offsets=_ints(shard.offset[0] for shard in shards),
        pooled=option.is_pooled,
        weighted=bool(weighted),
        payload=_payload(option, sharder),
        value_bytes=option.tensor.element_size(),
        num_poolings=() if set(bags) == {1.0} else bags,
    )


def _features(option: ShardingOption) -> tuple[str, ...]:
    """Names of a table's features: from the module, since an option mostly names none, and may have fewer pooling factors."""
    for entry in model_tables(option.module[1]):
        if entry.table.name == option.name:
            return entry.features
    return tuple(option.feature_names or (f"{option.name}[{i}]" for i in range(option.num_inputs)))


def _each(table: str, what: str, given: Sequence[float], features: Sequence[str], assumed: list[str]) -> tuple[float, ...]:
    """One number for each feature."""
    if len(given) == len(features):
        return tuple(map(float, given))
    mean = sum(given) / len(given)
    if mean != 1.0 or len(given) > 1:
        assumed.append(
            f"table {table}: {what} {list(given)} are not one for each of {len(features)} features: {mean:g} for all"
        )
    return (mean,) * len(features)


def _payload(option: ShardingOption, sharder: ModuleSharder[nn.Module] | None) -> torch.dtype:
    """The dtype of lookups, not that of weights: FP32, unless a constraint or the sharder's ``fused_params`` say otherwise."""
    given = option.output_dtype or (getattr(sharder, "fused_params", None) or {}).get("output_dtype")
    if given is None:
        return torch.float32
    return given.as_dtype() if hasattr(given, "as_dtype") else data_type_to_dtype(given)


def _one_payload(tables: Iterable[PlannedTable]) -> tuple[PlannedTable, ...]:
    """Tables of one exchange travel in one dtype: the one that theirs promote to."""
    dtypes = defaultdict(list)
    for table in tables:
        dtypes[table.module, table.sharding_type].append(table.payload)
    common = {exchange: reduce(torch.promote_types, each) for exchange, each in dtypes.items()}
    return tuple(replace(table, payload=common[table.module, table.sharding_type]) for table in tables)


def _memory(options: Iterable[ShardingOption], job: Job) -> np.ndarray | None:
    """``[world]`` bytes that the planner counts for tables: of HBM if it counts any, else of DDR. All groups have the same."""
    shards = [shard for option in options for shard in option.shards]
    if any(shard.storage is None for shard in shards):
        return None
    groups = job.groups()
    memory = np.zeros((len(groups[0]), 2))
    for shard in shards:
        memory[shard.rank] += shard.storage.hbm, shard.storage.ddr
    world = np.zeros(job.machines.world_size)
    for group in groups:
        world[group] = memory[:, 0] if memory[:, 0].any() else memory[:, 1]
    return world


def _ints(values: Iterable[int]) -> np.ndarray:
    return np.array(list(values), dtype=np.int64)


def _some(names: Sequence[str], shown: int = 5) -> str:
    listed = ", ".join(names[:shown])
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"{len(names)} table{'s' if len(names) > 1 else ''}: {listed}{more}"
