"""Every feature with a batch size of its own (VBE), written out by TorchRec's inverse indices."""

from __future__ import annotations

import pytest

from tests.ranks import RankPool
from tests.sharding.models import LOCAL, TABLES, placed
from tests.sharding.scenarios import equals_native, traffic
from tests.sharding.test_quantized import MIXED, SHARDINGS
from tests.sharding.test_traffic import check_by_hand
from tests.sharding.variable import MEANS, SIZES, alternating, beside_native_reduced, quantized_step, ragged, refused

WIDTH = sum(t.dim * len(t.features) for t in TABLES)


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


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("weighted", [False, True], ids=["mean", "weighted"])
def test_row_wise_none_differs_from_torchrec_by_the_order_of_summation_only(
    ranks: RankPool, world: int, weighted: bool
) -> None:
    for answer in ranks.run(world, beside_native_reduced, weighted, 4):
        assert answer["output"] <= 1, answer
        assert answer["weights"] <= 1, answer


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("kind", [*SHARDINGS, "row_wise"])
def test_mixed_codecs_within_their_bounds(ranks: RankPool, kind: str, world: int) -> None:
    answers = ranks.run(world, quantized_step, kind, MIXED, env={"LOCAL_WORLD_SIZE": "1"})
    for rank, answer in enumerate(answers):
        assert answer["shape"] == (SIZES[rank][0], WIDTH)
        assert answer["forward"] <= 1, (rank, answer)
        assert all(over <= 1 for over in answer["backward"].values()), (rank, answer)
        assert not any(answer["forward equal"]), (rank, answer)
        assert not any(answer["backward equal"].values()), (rank, answer)
        assert bool(answer["backward"]) == (kind == "row_wise" or rank < world - 1)


@pytest.mark.parametrize("kind", [*SHARDINGS, "row_wise"])
def test_counted_bytes_are_sent_bytes(ranks: RankPool, kind: str) -> None:
    """A distinct row travels once, however often its batch uses it."""
    world, steps = 4, 2
    answers = ranks.run(world, traffic, kind, SIZES, MIXED, ragged, MEANS)
    plan = placed(TABLES, kind, world, holders=3)
    index = {feature: i for i, feature in enumerate(feature for t in TABLES for feature in t.features)}
    check_by_hand(answers, plan, lambda t, sample: steps * sum(SIZES[sample][1][index[feature]] for feature in t.features))


def test_variable_and_plain_batches_in_turn(ranks: RankPool) -> None:
    assert ranks.run(3, alternating) == [[True] * 4] * 3


@pytest.mark.parametrize("kind", ["table_row_wise", "grid_shard"])
def test_two_hop_shardings_refuse_it(ranks: RankPool, kind: str) -> None:
    for said in ranks.run(4, refused, kind, env={"LOCAL_WORLD_SIZE": str(LOCAL)}):
        assert "variable batch per feature is not supported yet with table-row-wise and grid sharding" in said
