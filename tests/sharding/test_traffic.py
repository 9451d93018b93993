"""Counted bytes are the bytes given to the collective, and the layouts' arithmetic done by hand."""

from __future__ import annotations

import pytest

from tests.ranks import RankPool
from tests.sharding.models import TABLES, placed
from tests.sharding.scenarios import traffic
from tests.sharding.test_quantized import MIXED, SHARDINGS

ROW_BYTES = {
    "int8": lambda dim: dim + 8,
    "int4": lambda dim: (dim + 1) // 2 + 4,
    "fp8_e4m3": lambda dim: dim + 1,
    "fp8_e5m2": lambda dim: dim + 1,
    "fp16": lambda dim: 2 * dim,
    "bf16": lambda dim: 2 * dim,
}
FORWARD = {"t0": "int8", "t1": "fp8_e4m3", "t2": "int4", "t3": "fp16"}
BACKWARD = {"t0": "int8", "t1": "fp8_e5m2", "t2": "bf16", "t3": "int4"}


@pytest.mark.parametrize("sharding_type", [*SHARDINGS, "row_wise"])
def test_counted_bytes_are_sent_bytes(ranks: RankPool, sharding_type: str) -> None:
    sizes, world, steps = (8, 8, 5, 1), 4, 2
    answers = ranks.run(world, traffic, sharding_type, sizes, MIXED)
    plan = placed(TABLES, sharding_type, world, holders=3)
    forward = [[0] * world for _ in range(world)]
    backward = [[0] * world for _ in range(world)]
    tables = {(t.name, direction): [0, 0] for t in TABLES for direction in ("forward", "backward")}
    for t in TABLES:
        for shard, owner in zip(plan[t.name].sharding_spec.shards, plan[t.name].ranks, strict=True):
            dim = shard.shard_sizes[1]
            for sample, size in enumerate(sizes):
                rows = steps * size * len(t.features)
                for direction, codec, matrix, a, b in (
                    ("forward", FORWARD[t.name], forward, owner, sample),
                    ("backward", BACKWARD[t.name], backward, sample, owner),
                ):
                    matrix[a][b] += rows * ROW_BYTES[codec](dim)
                    tables[t.name, direction][0] += rows * dim
                    tables[t.name, direction][1] += rows * ROW_BYTES[codec](dim)
    both = [[f + b for f, b in zip(*rows, strict=True)] for rows in zip(forward, backward, strict=True)]
    for rank, answer in enumerate(answers):
        assert answer["forward"] == forward
        assert answer["matrix"] == both
        assert answer["spied"] == answer["local row"] == both[rank]
        assert answer["tables"] == {key: tuple(sums) for key, sums in tables.items()}
        assert answer["fp32"] == 4 * sum(values for values, _ in tables.values())
        assert answer["counts nothing outside the block"]
        assert answer["reset"] == 0
