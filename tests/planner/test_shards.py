"""Which rank has which shard is read as TorchRec will have it, not as a plan by hand may name it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchrec.distributed.types import ShardingPlan
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.planner.held import TABLE, held, planned_by_hand
from tests.ranks import RankPool
from tests.sharding.scenarios.tables import LOCAL, collection
from torchrec_qcomm.planner.findings.lookups import profile_lookups
from torchrec_qcomm.planner.search.topology import build_topology
from torchrec_qcomm.planner.sources.options import PlannerInputs, options_of
from torchrec_qcomm.planner.sources.shards import ranks_of
from torchrec_qcomm.sharding import default_sharders

WORLD = 4
PLANS = {
    "row-wise, one rank named": ("row_wise", [0], [0, 1, 2, 3]),
    "row-wise, no rank named": ("row_wise", None, [0, 1, 2, 3]),
    "row-wise, another order named": ("row_wise", [3, 2, 1, 0], [0, 1, 2, 3]),
    "table-row-wise, the host's first rank named": ("table_row_wise", [2], [2, 3]),
    "table-row-wise, another rank of the host named": ("table_row_wise", [3], [2, 3]),
    "table-row-wise, all named": ("table_row_wise", [2, 3], [2, 3]),
}


@pytest.mark.parametrize("plan", PLANS)
def test_shards_are_where_torchrec_has_them(ranks: RankPool, plan: str) -> None:
    kind, named, expected = PLANS[plan]
    sharding = planned_by_hand(kind, named, expected)
    assert ranks_of(sharding) == expected
    (there, *others) = ranks.run(WORLD, held, kind, named, expected, env={"LOCAL_WORLD_SIZE": str(LOCAL)})
    assert all(answer == there for answer in others)
    first_rows = [shard.shard_offsets[0] for shard in sharding.sharding_spec.shards]
    assert there == [[row for row, rank in zip(first_rows, expected, strict=True) if rank == owner] for owner in range(WORLD)]


@pytest.mark.parametrize("plan", PLANS)
def test_options_and_profiles_go_by_it(plan: str) -> None:
    kind, named, expected = PLANS[plan]
    whole = ShardingPlan({"ebc": {"t": planned_by_hand(kind, named, expected)}})
    sharders = [sharder for sharder, _ in default_sharders()]
    inputs = PlannerInputs(build_topology(WORLD, LOCAL, "cpu"), 8, sharders)
    (option,) = options_of(whole, nn.ModuleDict({"ebc": collection([TABLE])}), inputs)
    assert [shard.rank for shard in option.shards] == expected
    batch = KeyedJaggedTensor(["f"], torch.arange(10), lengths=torch.ones(10, dtype=torch.int64))
    (profile,) = profile_lookups([batch], whole, features={"t": ["f"]}).tables
    assert profile.shards.ranks.tolist() == expected
