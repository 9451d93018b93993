"""With `none` on the wire the plugin cannot be told from TorchRec."""

from __future__ import annotations

import pytest

from tests.ranks import RankPool
from tests.sharding.scenarios.pooled_collections import equals_native

SIZES = (8, 7, 5, 1)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("sharding_type", ["table_wise", "column_wise", "table_column_wise", "mixed"])
@pytest.mark.parametrize("weighted", [False, True], ids=["mean", "weighted"])
def test_twenty_steps_bit_equal(ranks: RankPool, world: int, sharding_type: str, weighted: bool) -> None:
    holders = max(world - 1, 1)  # so that from two ranks on the last one has no table
    answers = ranks.run(world, equals_native, sharding_type, SIZES, weighted, holders, 20)
    for rank, answer in enumerate(answers):
        assert answer["ours is ours"] == "QCommShardedEmbeddingBagCollection"
        assert answer["outputs equal"], rank
        assert answer["weights equal"], rank
        assert answer["weights moved"], rank
        assert answer["keys"], rank
        assert bool(answer["shards"]) == (rank < holders)
