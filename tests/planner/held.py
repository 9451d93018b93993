"""Which shards TorchRec gives to a rank, whatever the plan names."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec
from torchrec.distributed import comm
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import ParameterSharding, ShardingEnv

from tests.planner.jobs import dealt
from tests.sharding.scenarios.pooled_collections import CPU
from tests.sharding.scenarios.tables import SGD, TableSpec, collection

TABLE = TableSpec("t", 10, 8, ("f",))


def planned_by_hand(kind: str, named: list[int] | None, ranks: list[int]) -> ParameterSharding:
    """A plan that places shards on ``ranks``, and names others."""
    cut = dealt(TABLE.rows, TABLE.dim, ranks)
    spec = EnumerableShardingSpec(
        [ShardMetadata([first, 0], [rows, dim], f"rank:{rank}/cpu") for rank, rows, dim, first in cut]
    )
    return ParameterSharding(kind, "fused", named, spec)


def held(rank: int, world: int, kind: str, named: list[int] | None, ranks: list[int]) -> list[list[int]]:
    """For each rank, the first row of every shard that it has."""
    comm._INTRA_PG = comm._CROSS_PG = None
    plan, env = {"t": planned_by_hand(kind, named, ranks)}, ShardingEnv.from_process_group(dist.group.WORLD)
    sharder = EmbeddingBagCollectionSharder(fused_params=SGD)
    (sharding,) = sharder.shard(collection([TABLE]), plan, env, CPU, module_fqn="ebc")._embedding_shardings
    by_rank = sharding._grouped_embedding_configs_per_rank
    return [
        [table.local_metadata.shard_offsets[0] for group in groups for table in group.embedding_tables] for groups in by_rank
    ]
