"""Counted bytes are the bytes given to the collective, and the layouts' arithmetic done by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.ranks import RankPool
from tests.sharding.scenarios.pooled_collections import traffic
from tests.sharding.scenarios.tables import LOCAL, TABLES, TableSpec, placed
from tests.sharding.test_quantized import MIXED, SHARDINGS
from torchrec_qcomm.policy import Policy, Rule

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


def check_by_hand(answers: list[dict], plan: dict, rows_of: Callable[[TableSpec, int], int]) -> None:
    """Hold what ranks counted under `FORWARD` and `BACKWARD` against the arithmetic; ``rows_of(table, sample rank)``."""
    world = len(answers)
    forward = [[0] * world for _ in range(world)]
    backward = [[0] * world for _ in range(world)]
    tables = {(t.name, direction): [0, 0] for t in TABLES for direction in ("forward", "backward")}
    for t in TABLES:
        for shard, owner in zip(plan[t.name].sharding_spec.shards, plan[t.name].ranks, strict=True):
            dim = shard.shard_sizes[1]
            for sample in range(world):
                rows = rows_of(t, sample)
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


@pytest.mark.parametrize("sharding_type", [*SHARDINGS, "row_wise"])
def test_counted_bytes_are_sent_bytes(ranks: RankPool, sharding_type: str) -> None:
    sizes, world, steps = (8, 8, 5, 1), 4, 2
    answers = ranks.run(world, traffic, sharding_type, sizes, MIXED)
    plan = placed(TABLES, sharding_type, world, holders=3)
    check_by_hand(answers, plan, lambda t, sample: steps * sizes[sample] * len(t.features))
    for answer in answers:
        assert answer["counts nothing outside the block"]
        assert answer["reset"] == 0


HOPS = Policy("int4", "int8", rules=(Rule(link="intra_host", forward="bf16", backward="fp16"),))


def hop_bytes(direction: str, source: int, destination: int, dim: int) -> int:
    """A row under `HOPS`, on hosts of two: 16 bits inside a host and for a rank's own share, else int4 or int8."""
    if source // LOCAL == destination // LOCAL:
        return 2 * dim
    return ROW_BYTES["int4" if direction == "forward" else "int8"](dim)


def check_two_hops_by_hand(answers: list[dict], plan: dict, rows_of: Callable[[TableSpec, int], int]) -> None:
    """Hold what ranks counted under `HOPS` against the arithmetic; ``rows_of(table, sample rank)``, of all features.

    Inside the host that owns a shard, each rank is sent all samples of its local rank; across, those of one rank.
    """
    world = len(answers)
    forward = [[0] * world for _ in range(world)]
    backward = [[0] * world for _ in range(world)]

    def row(dim: int, source: int, destination: int, rows: int) -> None:
        forward[source][destination] += rows * hop_bytes("forward", source, destination, dim)
        backward[destination][source] += rows * hop_bytes("backward", destination, source, dim)

    for t in TABLES:
        shards, owners = plan[t.name].sharding_spec.shards, plan[t.name].ranks
        for column in range(0, len(shards), LOCAL):
            dim, host = shards[column].shard_sizes[1], owners[column] // LOCAL
            for local in range(LOCAL):
                reducer = host * LOCAL + local
                mine = sum(rows_of(t, sample) for sample in range(local, world, LOCAL))
                for owner in owners[column : column + LOCAL]:
                    row(dim, owner, reducer, mine)
                for sample in range(local, world, LOCAL):
                    row(dim, reducer, sample, rows_of(t, sample))
    both = [[f + b for f, b in zip(*pair, strict=True)] for pair in zip(forward, backward, strict=True)]
    for rank, answer in enumerate(answers):
        assert answer["forward"] == forward
        assert answer["matrix"] == both
        assert answer["spied"] == both[rank]


@pytest.mark.parametrize("kind", ["table_row_wise", "grid_shard"])
def test_both_hops_are_counted(ranks: RankPool, kind: str) -> None:
    sizes, world, steps = (8, 8, 5, 1), 4, 2
    answers = ranks.run(world, traffic, kind, sizes, HOPS, env={"LOCAL_WORLD_SIZE": str(LOCAL)})
    plan = placed(TABLES, kind, world)
    check_two_hops_by_hand(answers, plan, lambda t, sample: steps * sizes[sample] * len(t.features))
