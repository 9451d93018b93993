"""Every feature with a batch size of its own (VBE), written out by TorchRec's inverse indices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.ranks import RankPool
from tests.sharding.scenarios.pooled_collections import equals_native, traffic
from tests.sharding.scenarios.tables import LOCAL, ROWS_DEALT_OUT, TABLES, TableSpec, placed
from tests.sharding.scenarios.variable_batch import (
    MEANS,
    SIZES,
    SUMS,
    alternating,
    beside_native_reduced,
    beside_unsharded,
    quantized_step,
    ragged,
)
from tests.sharding.test_quantized import MIXED, SHARDINGS
from tests.sharding.test_traffic import HOPS, check_by_hand, check_two_hops_by_hand
from torchrec_qcomm.policy import Policy

WIDTH = sum(t.dim * len(t.features) for t in TABLES)
TWO_HOPS = ("table_row_wise", "grid_shard")


def hosts(kind: str) -> dict[str, str] | None:
    """Hosts of two ranks for shardings that look at hosts."""
    return {"LOCAL_WORLD_SIZE": str(LOCAL)} if kind in TWO_HOPS else None


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("sharding_type", [*SHARDINGS, "mixed_sharded"])
@pytest.mark.parametrize("weighted", [False, True], ids=["mean", "weighted"])
def test_none_is_bit_equal_to_torchrec(ranks: RankPool, world: int, sharding_type: str, weighted: bool) -> None:
    holders = max(world - 1, 1)  # so that from two ranks on the last one has no table
    answers = ranks.run(world, equals_native, sharding_type, SIZES, weighted, holders, 5, ragged, MEANS)
    for rank, answer in enumerate(answers):
        assert answer["ours is ours"] == "QCommShardedEmbeddingBagCollection"
        assert answer["outputs equal"], rank
        assert answer["weights equal"], rank
        assert answer["weights moved"], rank
        assert bool(answer["shards"]) == (rank < holders)


@pytest.mark.parametrize(
    ("kind", "world"), [("row_wise", 2), ("row_wise", 3), ("row_wise", 4), ("table_row_wise", 2), ("table_row_wise", 4)]
)
@pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
def test_none_over_dealt_out_rows_differs_from_torchrec_by_the_order_of_summation_only(
    ranks: RankPool, kind: str, world: int, weighted: bool
) -> None:
    for answer in ranks.run(world, beside_native_reduced, kind, weighted, 4, env=hosts(kind)):
        assert answer["output"] <= 1, answer
        assert answer["weights"] <= 1, answer


@pytest.mark.parametrize(
    ("kind", "world", "holders"), [("grid_shard", 2, 2), ("grid_shard", 4, 4), ("grid_shard", 4, 2), ("table_row_wise", 4, 2)]
)
@pytest.mark.parametrize("weighted", [False, True], ids=["sum", "weighted"])
def test_two_hops_of_none_are_the_unsharded_model_but_for_the_order_of_summation(
    ranks: RankPool, kind: str, world: int, holders: int, weighted: bool
) -> None:
    """Also where a host has no tables. TorchRec 1.8 itself has no variable batches over grid tables."""
    for answer in ranks.run(world, beside_unsharded, kind, holders, weighted, env=hosts(kind)):
        assert answer["output"] <= 1, answer
        assert answer["weights"] <= 1, answer
        assert answer["moved"] > 1e-4


@pytest.mark.parametrize(
    ("kind", "world", "policy"),
    [
        *((kind, world, MIXED) for kind in (*SHARDINGS, "row_wise") for world in (2, 3, 4)),
        *((kind, 4, policy) for kind in TWO_HOPS for policy in (MIXED, HOPS)),
    ],
)
def test_mixed_codecs_within_their_bounds(ranks: RankPool, kind: str, world: int, policy: Policy) -> None:
    answers = ranks.run(world, quantized_step, kind, policy, env=hosts(kind) or {"LOCAL_WORLD_SIZE": "1"})
    for rank, answer in enumerate(answers):
        assert answer["shape"] == (SIZES[rank][0], WIDTH)
        assert answer["forward"] <= 1, (rank, answer)
        assert all(over <= 1 for over in answer["backward"].values()), (rank, answer)
        assert not any(answer["forward equal"]), (rank, answer)
        assert not any(answer["backward equal"].values()), (rank, answer)
        assert bool(answer["backward"]) == (kind in ROWS_DEALT_OUT or rank < world - 1)


def rows_sent(steps: int) -> Callable[[TableSpec, int], int]:
    """A distinct row travels once, however often its batch uses it."""
    index = {feature: i for i, feature in enumerate(feature for t in TABLES for feature in t.features)}
    return lambda t, sample: steps * sum(SIZES[sample][1][index[feature]] for feature in t.features)


@pytest.mark.parametrize("kind", [*SHARDINGS, "row_wise"])
def test_counted_bytes_are_sent_bytes(ranks: RankPool, kind: str) -> None:
    answers = ranks.run(4, traffic, kind, SIZES, MIXED, ragged, MEANS)
    check_by_hand(answers, placed(TABLES, kind, 4, holders=3), rows_sent(steps=2))


@pytest.mark.parametrize("kind", TWO_HOPS)
def test_counted_bytes_are_sent_bytes_in_both_hops(ranks: RankPool, kind: str) -> None:
    answers = ranks.run(4, traffic, kind, SIZES, HOPS, ragged, SUMS, env=hosts(kind))
    check_two_hops_by_hand(answers, placed(TABLES, kind, 4), rows_sent(steps=2))


def test_variable_and_plain_batches_in_turn(ranks: RankPool) -> None:
    assert ranks.run(3, alternating) == [[True] * 4] * 3
