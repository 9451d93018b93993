"""Modules that hold a collection."""

from __future__ import annotations

import pytest

from tests.ranks import RankPool
from tests.sharding.scenarios import holders
from tests.sharding.scenarios.sequences import DIM
from torchrec_qcomm.policy import Policy

INT8 = Policy("int8", "int8")


@pytest.mark.parametrize("kind", ["table_wise", "column_wise", "row_wise"])
def test_position_weights_learn_what_they_learn_with_torchrec(ranks: RankPool, kind: str) -> None:
    for answer in ranks.run(2, holders.feature_processed, kind, Policy()):
        assert answer["type"] == "QCommShardedEmbeddingBagCollection"
        assert all(answer[key] for key in ("outputs", "gradients", "weights", "some"))


def test_position_weights_of_quantized_tables_are_as_good_as_the_codec(ranks: RankPool) -> None:
    for answer in ranks.run(2, holders.feature_processed, "table_wise", INT8):
        assert not answer["outputs"]
        assert not answer["gradients"]
        assert 0 < answer["output over int8"] <= 1
        assert 0 < answer["gradient over int8"] <= 1


OURS = {"bags": "QCommShardedEmbeddingBagCollection", "sequences": "QCommShardedEmbeddingCollection"}


@pytest.mark.parametrize("kind", list(holders.MANAGED_MODULES))
@pytest.mark.parametrize("policy", [Policy(), INT8], ids=["none", "int8"])
def test_managed_collisions(ranks: RankPool, kind: str, policy: Policy) -> None:
    """Evictions, too: they reset rows, in the tables that the exchange trains."""
    exact = policy == Policy()
    row_bytes = 4 * DIM if exact else DIM + 8
    for answer in ranks.run(2, holders.managed_collisions, kind, policy):
        assert answer["type"] == OURS[kind]
        assert answer["outputs"] == [exact] * 4
        assert answer["weights"] == exact
        assert answer["ids"]  # they are integers, and exchanged by TorchRec
        assert answer["ids moved"]
        assert answer["error"] == 0 if exact else 0 < answer["error"] < 0.01
        for table, rows in answer["rows"].items():
            for direction in ("forward", "backward"):
                assert answer["wire"][table, direction] == rows * row_bytes


def test_managed_collisions_on_a_rank_without_samples(ranks: RankPool) -> None:
    """Its gradients come from the other rank alone."""
    some, nothing = ranks.run(2, holders.managed_without_samples, INT8)
    assert some["rows"] > 0
    assert (nothing["rows"], nothing["lengths"]) == (0, {0})
    assert some["moved"]
    assert nothing["moved"]


@pytest.mark.parametrize("kind", list(holders.MANAGED_MODULES))
def test_rules_of_managed_collisions_are_checked(ranks: RankPool, kind: str) -> None:
    for answer in ranks.run(2, holders.rules_of_managed_collisions, kind):
        assert answer.startswith("PolicyError")
        assert "'t9'; allowed: t0, t1, t2" in answer
