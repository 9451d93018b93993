"""EmbeddingCollection: a vector for every id, table-, column- and row-wise."""

from __future__ import annotations

import pytest
import torch

from tests.ranks import RankPool
from tests.sharding.scenarios.sequence_dist import alone, contradicting
from tests.sharding.scenarios.sequences import (
    KINDS,
    SEQUENCES,
    quantized_sequences,
    sequence_plan,
    sequence_traffic,
    sequences_equal_native,
    variable_sequences,
)
from tests.sharding.test_quantized import MIXED, UNIFORM
from tests.sharding.test_traffic import BACKWARD, FORWARD, ROW_BYTES
from torchrec_qcomm.policy import Policy

BATCHES = {1: (7,), 2: (7, 7), 3: (7, 0, 5), 4: (8, 8, 5, 1)}
"""Even, a rank with an empty batch, and an uneven last batch."""


@pytest.mark.parametrize("world", BATCHES)
@pytest.mark.parametrize("kind", KINDS)
def test_none_is_bit_equal_to_torchrec(ranks: RankPool, kind: str, world: int) -> None:
    holders = max(world - 1, 1)  # so that from two ranks on the last one has no table
    for rank, answer in enumerate(ranks.run(world, sequences_equal_native, kind, BATCHES[world], holders, 6)):
        assert answer["ours is ours"] == "QCommShardedEmbeddingCollection"
        assert answer["outputs equal"], rank
        assert answer["weights equal"], rank
        assert answer["keys"], rank
        assert answer["weights moved"], rank
        assert bool(answer["shards"]) == (rank < holders or kind in ("row_wise", "mixed"))


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", [MIXED, *UNIFORM], ids=["mixed", *(str(policy.forward) for policy in UNIFORM)])
def test_quantized_within_their_bounds(ranks: RankPool, kind: str, world: int, policy: Policy) -> None:
    answers = ranks.run(world, quantized_sequences, kind, BATCHES[world], policy, env={"LOCAL_WORLD_SIZE": "1"})
    for rank, answer in enumerate(answers):
        assert answer["forward over bound"] <= 1, (rank, answer)
        assert all(over <= 1 for over in answer["backward over bound"].values()), (rank, answer)
        assert answer["forward equal"] == (BATCHES[world][rank] == 0)
        assert not any(answer["backward equal"].values()), (rank, answer)


@pytest.mark.parametrize("kind", KINDS)
def test_counted_bytes_are_sent_bytes(ranks: RankPool, kind: str) -> None:
    """A vector for every id, from the owner of its row to the rank of its sample."""
    world, sizes = 4, (8, 0, 5, 1)
    answers = ranks.run(world, sequence_traffic, kind, sizes, MIXED)
    plan = sequence_plan(SEQUENCES, kind, world, holders=3)
    forward = [[0] * world for _ in range(world)]
    backward = [[0] * world for _ in range(world)]
    for sample, answer in enumerate(answers):
        for t in SEQUENCES:
            for shard, owner in zip(plan[t.name].sharding_spec.shards, plan[t.name].ranks, strict=True):
                (first, _), (count, width) = shard.shard_offsets, shard.shard_sizes
                ids = sum(first <= row < first + count for feature in t.features for row in answer["ids"][feature])
                forward[owner][sample] += ids * ROW_BYTES[FORWARD[t.name]](width)
                backward[sample][owner] += ids * ROW_BYTES[BACKWARD[t.name]](width)
    both = [[f + b for f, b in zip(*rows, strict=True)] for rows in zip(forward, backward, strict=True)]
    for rank, answer in enumerate(answers):
        assert answer["forward"] == forward
        assert answer["matrix"] == both
        assert answer["spied"] == answer["local row"] == both[rank]


@pytest.mark.parametrize("dim", [1, 5, 7, 33])
@pytest.mark.parametrize("sizes", [(7, 7, 7), (3, 1, 0)])
def test_odd_dims_on_three_ranks_two_in_flight(ranks: RankPool, dim: int, sizes: tuple[int, ...]) -> None:
    names = {"a": "int4", "b": "int8", "c": "fp8_e4m3"}
    for rank, answers in enumerate(ranks.run(3, alone, dim, sizes, names, torch.float32, 2)):
        for answer in answers:
            assert answer["forward"] <= 1, answer
            assert answer["backward"] <= 1, answer
            assert answer["shape"]
            # One value a row may be kept exactly, as the row's minimum and maximum are.
            assert dim == 1 or answer["differs"] == (sizes[rank] > 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bit_vectors(ranks: RankPool, dtype: torch.dtype) -> None:
    for (answer,) in ranks.run(3, alone, 8, (2, 3, 1), {}, dtype):
        # Moved as they are; the gradient, divided by three, rounds once more.
        assert answer["forward"] == 0
        assert answer["dtype"]
        assert not answer["differs"]


def test_contexts_that_contradict_themselves(ranks: RankPool) -> None:
    for rank, said in enumerate(ranks.run(2, contradicting)):
        assert "unknown how many ids there are; got 'no context'" in said[0]
        assert "got 'lengths_after_input_dist=None'" in said[1]
        assert f"ids looked up for each rank are not those of the input dist; got {[[1, 1], [0, 0]][rank]}" in said[2]
        assert "ids sent to each rank are not those of the input dist; got [1, 0]; allowed: [2, 0]" in said[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_variable_batch_is_bit_equal_to_torchrec_as_far_as_the_exchange(ranks: RankPool, kind: str) -> None:
    for answer in ranks.run(3, variable_sequences, kind):
        assert answer["outputs equal"]
        assert answer["weights equal"]
        assert answer["weights moved"]
        assert not answer["upstream keeps the gradient"]
