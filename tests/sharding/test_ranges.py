"""Ranges for whole tables in the exchange: right in every sharding, counted, kept, and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.ranks import RankPool
from tests.sharding.scenarios.ranges import (
    LOCALS,
    WHOLE,
    agreed,
    checkpointed,
    of_all_ranks,
    refused,
    resumed,
    saturated,
    statistics,
    trained,
)
from tests.sharding.scenarios.reduce_scatter import HIERARCHICAL
from torchrec_qcomm.policy import Policy, Rule

EMA8 = {"codec": "int8", "range": {"ema": 0}}
"""The range of each step itself: batches of three samples have extremes that differ too much for an average."""
KINDS = [*WHOLE, "row_wise", "table_row_wise", "grid_shard", HIERARCHICAL, "sequences"]
KINDS += [f"{kind}, variable" for kind in ("table_wise", "row_wise", "table_row_wise")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_moving_range_in_every_sharding(ranks: RankPool, kind: str) -> None:
    """Forward and backward on uneven batches: near FP32, not equal to it; bytes beyond one a value are heads, 8 each."""
    two_hops = kind.split(",")[0] in ("table_row_wise", "grid_shard", HIERARCHICAL)
    env = LOCALS if two_hops else {"LOCAL_WORLD_SIZE": "1"}
    for answer in ranks.run(4, trained, kind, (3, 4, 2, 0 if kind == "table_wise" else 1), Policy(EMA8, EMA8), env=env):
        # A step is a 254th of what all rows of a table span, about 8 of their standard deviations: 8 / 254 / sqrt(12) = 0.009.
        assert all(error < 0.03 for error in answer["errors"]), answer
        assert answer["different"], answer
        assert 0 < answer["gradients"] < 0.03, answer
        assert all(heads > 0 and heads % 8 == 0 for heads in answer["heads"].values()), answer
        assert len(answer["state"]) <= (4 if two_hops else 6), answer["state"].keys()
        assert not answer["keys"]


@pytest.mark.parametrize("link", ["intra_host", "inter_host"])
def test_a_link_of_its_own_has_statistics_of_its_own(ranks: RankPool, link: str) -> None:
    """Half of the pairs move as they are; a table with two ranges, on two links, has two lines."""
    other = {"codec": "int4", "range": {"ema": 0.5}}
    policy = Policy(rules=(Rule(link=link, forward=EMA8, backward=EMA8), Rule(forward=other, backward=other)))
    for answer in ranks.run(4, trained, "table_wise", (3, 4, 2, 1), policy, env=LOCALS):
        assert all(error < 0.3 for error in answer["errors"]), answer
        for tables in answer["state"].values():
            assert len({name.split()[0] for name in tables}) * 2 == len(tables)


@pytest.mark.parametrize("kind", ["table_wise", "sequences"])
def test_ranges_are_saved_and_resumed(ranks: RankPool, kind: str) -> None:
    for rank, answer in enumerate(ranks.run(2, resumed, kind)):
        state = answer.pop("state")
        assert all(answer.values()), answer
        assert any(f"ranges/rank {rank}/" in key and "/backward/" in key and key.endswith("/std") for key in state), state


def test_statistics_are_the_senders_moving_averages(ranks: RankPool) -> None:
    for answer in ranks.run(2, statistics):
        assert answer["worst"] < 1e-5, answer
        assert answer["tables"]
        assert answer["values"]
        assert answer["updates"] == {3}


def test_what_is_beyond_a_range_saturates_and_is_counted(ranks: RankPool) -> None:
    for answer in ranks.run(2, saturated):
        assert answer["largest"] == pytest.approx(0.5)
        assert answer["counted"] == answer["beyond"] > 100
        assert answer["not finite"] == 1


def test_states_of_something_else_are_refused(ranks: RankPool) -> None:
    for rank, messages in enumerate(ranks.run(2, refused)):
        assert len(messages) == 4
        assert f"nothing of rank {rank}; got ['rank 7']; allowed: rank {rank}. Leave `ranges` out to begin anew." in messages[0]
        assert "of another plan: not the same exchanges" in messages[1]
        assert "the statistics of other tables or codecs; got ['t9 int8']" in messages[2]
        assert "not statistics; got {'minimum': 0.0}; allowed: maximum, mean, minimum" in messages[3]


def test_what_is_saved_of_other_ranks_is_passed_over(ranks: RankPool) -> None:
    """Also by ranks that send nothing with a range; one whose own it is not is told that the plan, or policy, is another."""
    answers = ranks.run(3, of_all_ranks)
    assert all(answer["same"] and answer["ranks"] == ["rank 0"] for answer in answers), answers
    assert "of another plan: not the same exchanges" in answers[0]["refusal"]
    assert [answer["refusal"] for answer in answers[1:]] == [""] * 2


def test_ranges_go_through_a_checkpoint_of_all_ranks(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(2, checkpointed, str(tmp_path)) == [[True] * 5] * 2


@pytest.mark.parametrize(
    "ranges",
    [({"ema": 0.5}, {"ema": 0.9}), ({"ema": 0.5}, "row"), ({"static": [-1, 1]}, {"static": [-1, 1.0000001]})],
    ids=["ema", "row", "almost"],
)
def test_ranks_with_other_ranges_do_not_start(ranks: RankPool, ranges: tuple[Any, Any]) -> None:
    for answer in ranks.run(2, agreed, ranges):
        assert "ranks disagree on policy.t0.forward" in answer
