"""Ways into sharding other than a plain sharder, and what is made of the result."""

from __future__ import annotations

import itertools

import pytest

from tests.ranks import RankPool
from tests.sharding.scenarios import entry_points
from tests.sharding.scenarios.tables import TABLES
from torchrec_qcomm.policy import Policy, Rule

INT8 = Policy("int8", "int8")


@pytest.mark.parametrize("policy", [Policy(), INT8], ids=["none", "int8"])
def test_composable_sharding(ranks: RankPool, policy: Policy) -> None:
    for answer in ranks.run(2, entry_points.composable, policy):
        for way in ("shard", "shard_modules"):
            assert answer[way]["kinds"] == ["QCommShardedEmbeddingBagCollection", "ShardedEmbeddingBagCollection"]
            assert answer[way]["equal"] == (policy == Policy())
            assert answer[way]["shards"] > 0


@pytest.mark.parametrize("policy", [Policy(), INT8], ids=["none", "int8"])
def test_a_model_made_on_the_meta_device_trains(ranks: RankPool, policy: Policy) -> None:
    for answer in ranks.run(2, entry_points.materialised, policy):
        assert answer["kinds"] == ["QCommShardedEmbeddingBagCollection", "ShardedEmbeddingBagCollection"]
        assert answer["devices"] == {"cpu"}
        assert answer["equal"] == (policy == Policy())


@pytest.mark.parametrize("kind", ["table_wise", "column_wise", "row_wise", "table_row_wise", "grid_shard"])
def test_sharding_on_the_meta_device(ranks: RankPool, kind: str) -> None:
    for answer in ranks.run(2, entry_points.meta_sharded, kind):
        ours, native = answer["sizes"]
        assert ours == native
        assert len(ours) == 4
        # In two hops TorchRec's own stay: they have no groups of hosts there.
        assert (answer["dists"][0] == {"QCommPooledEmbeddingDist"}) == (kind not in ("table_row_wise", "grid_shard"))


@pytest.mark.parametrize("kind", ["table_wise", "row_wise", "sequences"])
def test_state_dicts_of_dtensors(ranks: RankPool, kind: str) -> None:
    for answer in ranks.run(2, entry_points.with_dtensors, kind):
        assert answer["DTensors"]
        assert answer["kinds"]
        assert answer["shards"]
        assert answer["outputs"] == [True, True]


TWO_HOSTS = {"LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize("kind", ["table_wise", "column_wise", "row_wise", "table_row_wise", "sequences"])
def test_two_dimensional_parallelism(ranks: RankPool, kind: str) -> None:
    for answer in ranks.run(4, entry_points.two_dimensional, kind, Policy(), env=TWO_HOSTS):
        assert answer["outputs"] == [True, True]
        assert answer["shards"]
        assert answer["kinds"]
        assert answer["DTensors"]


BY_LINK = Policy("bf16", "bf16", rules=(Rule(link="inter_host", forward="int8", backward="int4"),))


def bytes_by_link(kind: str) -> dict[str, list[list[int]]]:
    """What two steps of `TABLES` send under `BY_LINK` in groups of ranks 0 and 2, 1 and 3, with other ranks on other hosts."""
    rows, ways = 2 * entry_points.SIZE, {way: [[0] * 4 for _ in range(4)] for way in ("forward", "backward")}
    for group in ([0, 2], [1, 3]):
        for i, t in enumerate(TABLES):
            owners = [group[i % 2]] if kind == "table_wise" else group
            for owner, sample in itertools.product(owners, group):
                int8, int4 = (2 * t.dim, 2 * t.dim) if owner == sample else (t.dim + 8, (t.dim + 1) // 2 + 4)
                ways["forward"][owner][sample] += rows * len(t.features) * int8
                ways["backward"][sample][owner] += rows * len(t.features) * int4
    return ways


@pytest.mark.parametrize("kind", ["table_wise", "row_wise", "table_row_wise"])
def test_links_of_two_dimensional_parallelism_are_those_of_global_ranks(ranks: RankPool, kind: str) -> None:
    """Ranks 0 and 2 are neighbours in their group, which TorchRec calls a node, but sit on two hosts."""
    for answer in ranks.run(4, entry_points.two_dimensional, kind, BY_LINK, env=TWO_HOSTS):
        assert answer["bytes"] == bytes_by_link(kind)
        assert 0 < answer["error"] < 0.02


@pytest.mark.parametrize("kind", ["table_wise", "row_wise", "table_row_wise", "sequences"])
def test_evaluation_gives_what_training_gives(ranks: RankPool, kind: str) -> None:
    for answer in ranks.run(2, entry_points.evaluated, kind):
        assert answer["equal"] == [True] * 4
        assert answer["called"] == ["sparse"]  # a leaf
