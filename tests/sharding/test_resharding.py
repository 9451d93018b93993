"""Tables that move while a model trains: TorchRec's own dynamic resharding."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ranks import RankPool
from tests.sharding.scenarios import entry_points, resharding
from torchrec_qcomm.policy import Policy

INT8 = Policy("int8", "int8")


@pytest.fixture(scope="module")
def alike() -> Iterator[RankPool]:
    """Ranks that hash texts alike, which TorchRec's resharding needs on gloo."""
    pool = RankPool()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONHASHSEED", "7")
        assert len(set(pool.run(2, resharding.hash_of_text))) == 1  # starts the processes
    yield pool
    pool.close()


@pytest.mark.parametrize("policy", [Policy(), INT8], ids=["none", "int8"])
def test_tables_that_move_while_training(alike: RankPool, policy: Policy) -> None:
    """With `none` the move cannot be told from TorchRec's, and with int8 the exchange after it is quantized, too."""
    row_bytes = (lambda dim: 4 * dim) if policy == Policy() else (lambda dim: dim + 8)
    for answer in alike.run(2, resharding.resharded, policy):
        assert answer["equal"] == [policy == Policy()] * 2
        assert answer["state"] == (policy == Policy())
        assert answer["moved"]
        assert answer["dists"] == {"QCommPooledEmbeddingDist"}
        steps, samples = 2, 2 * entry_points.SIZE
        for name, features, shards, dim in (("t0", 2, 2, 32), ("t1", 1, 1, 24), ("t2", 1, 2, 24)):
            for direction in ("forward", "backward"):
                assert answer["traffic"][name, direction] == steps * samples * features * shards * row_bytes(dim)


def test_ranges_stay_with_a_rank_and_go_with_its_last_table(alike: RankPool) -> None:
    """A table that arrives begins anew, and what is left of one that went is nothing that could be saved."""
    first, last = alike.run(2, resharding.ranges_kept)
    assert first == {"updates 0": {"t0": 1}, "updates 1": {"t0": 2, "t1": 1}}
    assert last == {"updates 0": {"t1": 1}, "updates 1": {}}


REFUSED = {
    "plan": "DisagreementError: module 'm (resharding)': ranks disagree on changes.t0.ranks",
    "tables": "DisagreementError: module 'm (resharding)': ranks disagree on changes.t2",
    "order": "DisagreementError: module 'm (resharding)': ranks disagree on order of the changes",
    "type": "ShardingError: table 't0', column_wise: TorchRec cannot change its shards like this",
    "kind": "ShardingError: table 't1', table_wise: TorchRec cannot change its shards like this",
    "from a rank with two": "ShardingError: table 't0', column_wise: TorchRec cannot move it from or to a rank with several",
    "to a rank with two": "ShardingError: table 't0', column_wise: TorchRec cannot move it from or to a rank with several",
    "widths": "ShardingError: table 't1', column_wise: TorchRec cannot load column shards of unequal widths",
    "unknown": "ShardingError: changes of the plan: not a table of the module; got 't9'; allowed: t0, t1, t2",
}


@pytest.mark.parametrize("how", REFUSED)
def test_moves_that_end_in_a_hang_are_refused(alike: RankPool, how: str) -> None:
    for answer, _ in alike.run(2, resharding.resharding_refused, how):
        assert answer.startswith(REFUSED[how])


def test_a_refused_move_is_told_to_the_other_ranks(alike: RankPool) -> None:
    (told, _), (refused, _) = alike.run(2, resharding.resharding_refused, "one fails")
    assert refused.startswith("ShardingError: table 't0': the exchange of this sharding type")
    assert told.startswith("DisagreementError: module 'm (resharding)': global rank 1 failed before the exchange: table 't0'")


def test_ranks_that_hash_texts_apart_cannot_move_tables_on_gloo(ranks: RankPool) -> None:
    """TorchRec itself hangs."""
    answers = ranks.run(2, resharding.resharding_refused, "")
    if len({hashed for _, hashed in answers}) == 1:
        pytest.skip("PYTHONHASHSEED is set")
    for answer, _ in answers:
        assert "ranks disagree on PYTHONHASHSEED" in answer
