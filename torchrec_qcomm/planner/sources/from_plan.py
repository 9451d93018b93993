"""From a final ``ShardingPlan``, as ``DistributedModelParallel`` takes it, and the model it is for, to the tables of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torchrec.distributed.types import ParameterSharding, ShardingPlan, ShardingType
from torchrec.modules.embedding_configs import data_type_to_dtype
from torchrec.modules.embedding_modules import EmbeddingBagCollectionInterface, EmbeddingCollectionInterface

from torchrec_qcomm.errors import PlannerError, describe
from torchrec_qcomm.planner.job import Job, Machines, PlannedTable, Replicas
from torchrec_qcomm.policy import Policy, Table

_NAMED = 5
"""Tables that an assumption names."""


def job_of_plan(
    model: nn.Module,
    plan: ShardingPlan | Mapping[str, Mapping[str, ParameterSharding]],
    machines: Machines,
    batch_size: int,
    policy: Policy | None = None,
    *,
    pooling: Mapping[str, Sequence[float]] | None = None,
    payload: torch.dtype = torch.float32,
    hierarchical_row_wise: bool = False,
    replicas: Replicas | None = None,
) -> Job:
    """The job that a plan is for.

    Args:
        model: not sharded yet; may be on the meta device.
        plan: by path of the collection and name of the table. With ``replicas`` as the planner made it, for a sharding group:
            ``DMPCollection`` changes the plan that it is given.
        machines: the ranks and links.
        batch_size: samples of a rank.
        policy: the codecs; by default none.
        pooling: ids of a sample for each feature, by table; 1 for tables that it leaves out, which is told among the
            assumptions.
        payload: dtype of the vectors of tables whose plan does not say, as ``fused_params["output_dtype"]`` does.
        hierarchical_row_wise: as the sharder is told.
        replicas: with 2D parallelism.

    Raises:
        PlannerError: the plan names a collection that the model does not have, or does not say where a table is.
    """
    by_path: Mapping[str, Mapping[str, ParameterSharding]] = plan.plan if isinstance(plan, ShardingPlan) else plan
    collections = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, EmbeddingBagCollectionInterface | EmbeddingCollectionInterface)
    }
    for path in by_path:
        if path not in collections:
            raise PlannerError(describe("plan", "no such collection in the model", got=path, allowed=collections))
    pooling, assumed, tables = pooling or {}, [], []
    for path, shardings in by_path.items():
        module: Any = collections[path]
        pooled = isinstance(module, EmbeddingBagCollectionInterface)
        configs = {config.name: config for config in (module.embedding_bag_configs() if pooled else module.embedding_configs())}
        for name, sharding in shardings.items():
            if name not in configs:
                raise PlannerError(describe(f"plan: {path!r}", "no such table", got=name, allowed=configs))
            weighted = pooled and module.is_weighted()
            tables.append(_planned(path, configs[name], sharding, pooled, weighted, pooling.get(name), payload))
            assumed += [] if name in pooling else [name]
    more = f" and {len(assumed) - _NAMED} more" if len(assumed) > _NAMED else ""
    assumptions = (f"one id a sample for the features of {', '.join(assumed[:_NAMED])}{more}",) if assumed else ()
    return Job(
        tuple(tables),
        machines,
        batch_size,
        policy or Policy(),
        hierarchical_row_wise=hierarchical_row_wise,
        replicas=replicas,
        assumptions=assumptions,
    )


def _planned(
    path: str,
    config: Any,
    sharding: ParameterSharding,
    pooled: bool,
    weighted: bool,
    pooling: Sequence[float] | None,
    payload: torch.dtype,
) -> PlannedTable:
    table = Table(config.name, config.num_embeddings, config.embedding_dim)
    features = tuple(config.feature_names)
    ranks, shards = _shards(table, sharding)
    sizes = np.array([[*size, offset[0]] for size, offset in shards], dtype=np.int64).reshape(-1, 3)
    return PlannedTable(
        table=table,
        module=path,
        features=features,
        pooling=(1.0,) * len(features) if pooling is None else tuple(float(ids) for ids in pooling),
        sharding_type=sharding.sharding_type,
        ranks=np.array(ranks, dtype=np.int64),
        shard_rows=sizes[:, 0],
        shard_dims=sizes[:, 1],
        row_offsets=sizes[:, 2],
        pooled=pooled,
        weighted=weighted,
        payload=payload if sharding.output_dtype is None else data_type_to_dtype(sharding.output_dtype),
        value_bytes=data_type_to_dtype(config.data_type).itemsize,
    )


def _shards(table: Table, sharding: ParameterSharding) -> tuple[list[int], list[tuple[Any, Any]]]:
    """The rank of each shard, and its size and offset ``(rows, columns)``."""
    if sharding.sharding_type == ShardingType.DATA_PARALLEL.value:
        return [], []
    where = f"plan: table {table.name!r}"
    found = getattr(sharding.sharding_spec, "shards", None)
    if not found:
        raise PlannerError(describe(where, "no shards", got=sharding.sharding_spec, allowed="an EnumerableShardingSpec"))
    shards = [(shard.shard_sizes, shard.shard_offsets) for shard in found]
    ranks = list(sharding.ranks or [])
    # TorchRec itself looks at fewer: row-wise at none, table-row-wise at the first.
    if sharding.sharding_type == ShardingType.ROW_WISE.value:
        ranks = list(range(len(shards)))
    elif sharding.sharding_type == ShardingType.TABLE_ROW_WISE.value and len(ranks) == 1:
        first = ranks[0] - ranks[0] % len(shards)
        ranks = list(range(first, first + len(shards)))
    if len(ranks) != len(shards):
        raise PlannerError(describe(where, "not one rank for each shard", got=ranks, allowed=f"{len(shards)} ranks"))
    return ranks, shards
