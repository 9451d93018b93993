"""With codecs on the wire: within the stated bounds, and not equal to FP32, which proves that they are in the path."""

from __future__ import annotations

import re

import pytest

from tests.ranks import RankPool
from tests.sharding.scenarios.pooled_collections import native_quantized, quantized_step
from torchrec_qcomm.policy import Policy, Rule, Where

MIXED = Policy(
    rules=(
        Rule(tables="t0", forward="int8", backward="int8"),
        Rule(tables="t1", forward="fp8_e4m3", backward="fp8_e5m2"),
        Rule(tables="t2", forward="int4", backward="bf16"),
        Rule(tables="t3", forward="fp16", backward="int4"),
    )
)
UNIFORM = [Policy(name, name) for name in ("fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4")]
SHARDINGS = ["table_wise", "column_wise", "table_column_wise"]


def check(answers: list[dict]) -> None:
    for rank, answer in enumerate(answers):
        assert answer["finite"], rank
        assert answer["forward over bound"] <= 1, (rank, answer)
        assert all(over <= 1 for over in answer["backward over bound"].values()), (rank, answer)
        assert not any(answer["forward equal"].values()), (rank, answer)
        assert not any(answer["backward equal"].values()), (rank, answer)


@pytest.mark.parametrize("sharding_type", SHARDINGS)
@pytest.mark.parametrize(("world", "sizes"), [(2, (7, 7)), (3, (7, 7, 7)), (4, (7, 7, 7, 7)), (4, (8, 8, 5, 1))])
def test_mixed_codecs(ranks: RankPool, sharding_type: str, world: int, sizes: tuple[int, ...]) -> None:
    check(ranks.run(world, quantized_step, sharding_type, sizes, MIXED))


@pytest.mark.parametrize("policy", UNIFORM, ids=lambda policy: str(policy.forward))
def test_every_codec(ranks: RankPool, policy: Policy) -> None:
    check(ranks.run(3, quantized_step, "column_wise", (7, 5, 3), policy))


def test_a_rank_with_an_empty_batch(ranks: RankPool) -> None:
    answers = ranks.run(3, quantized_step, "table_wise", (0, 4, 3), MIXED)
    assert all(answers[0]["forward equal"].values())  # it has no samples
    check(answers[1:])


def test_a_table_left_alone_stays_exact_beside_quantized_ones(ranks: RankPool) -> None:
    policy = Policy(rules=(Rule(tables="t[02]", forward="int8"), Rule(tables="t[13]", backward="int4")))
    for answer in ranks.run(2, quantized_step, "table_wise", (7, 6), policy):
        assert answer["forward equal"] == {"t0": False, "t1": True, "t2": False, "t3": True}
        assert all(answer["backward equal"].get(table, True) for table in ("t0", "t2"))
        assert not any(answer["backward equal"].get(table, False) for table in ("t1", "t3"))
        assert answer["forward over bound"] <= 1


@pytest.mark.parametrize("sharding_type", SHARDINGS)
def test_sizes_in_a_rule_are_the_tables_not_the_shards(ranks: RankPool, sharding_type: str) -> None:
    """Column shards of `t0` and `t2` are 16 and 12 wide; the tables are 64 and 48."""
    policy = Policy(rules=(Rule(where=Where(max_dim=32), forward="int8", backward="int8"),))
    for answer in ranks.run(2, quantized_step, sharding_type, (7, 6), policy):
        assert answer["forward equal"] == {"t0": True, "t1": False, "t2": True, "t3": False}
        assert all(equal == (table in ("t0", "t2")) for table, equal in answer["backward equal"].items())


@pytest.mark.parametrize(("precision", "said"), [("int8", r"row dim 32|'\[-1, 32\]' is invalid"), ("fp8", "dimension|CPU")])
def test_torchrecs_own_quantization_cannot_do_this(ranks: RankPool, precision: str, said: str) -> None:
    """The sizes of `test_mixed_codecs`. If this fails, TorchRec has learned it, and the docs are to be changed."""
    for answer in ranks.run(2, native_quantized, precision):
        assert re.search(said, answer), answer
