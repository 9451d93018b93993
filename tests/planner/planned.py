"""What ranks do to run a plan of TorchRec's planner and count what it sends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec
from torchrec.distributed.planner.types import ShardingOption
from torchrec.distributed.types import ParameterSharding

from tests.sharding.scenarios.pooled_collections import shard, step
from tests.sharding.scenarios.tables import SGD, TableSpec, batch, collection
from torchrec_qcomm.policy import Policy
from torchrec_qcomm.sharding import QCommEmbeddingBagCollectionSharder, measure_traffic

Placed = list[tuple[str, str, list[tuple[list[int], list[int], int]]]]


def placed_options(options: Iterable[ShardingOption]) -> Placed:
    """For each table its name, sharding type, and the offsets, size and rank of each shard."""
    return [(o.name, o.sharding_type, [(s.offset, s.size, s.rank) for s in o.shards]) for o in options]


def sent(
    rank: int, world: int, tables: Sequence[TableSpec], plan: Placed, policy: Policy, size: int
) -> dict[str, list[list[int]]]:
    """One step on CPU under a plan for whatever device: bytes ``[source][destination]`` forward and backward."""
    shardings = {
        name: ParameterSharding(
            kind,
            "fused",
            [owner for *_, owner in shards],
            EnumerableShardingSpec([ShardMetadata(offset, cut, f"rank:{owner}/cpu") for offset, cut, owner in shards]),
        )
        for name, kind, shards in plan
    }
    sharded = shard(QCommEmbeddingBagCollectionSharder(policy, fused_params=SGD), collection(tables), shardings)
    with measure_traffic(sharded) as meter:
        step(sharded, batch(tables, size, seed=rank), seed=rank)
        everyone = meter.gather()
    return {direction: everyone.matrix(world, direction=direction) for direction in ("forward", "backward")}
