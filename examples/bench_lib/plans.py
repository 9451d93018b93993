"""Made-up sharded jobs: any number of tables of all kinds, placed on any number of ranks."""

from __future__ import annotations

import numpy as np

from torchrec_qcomm import Policy, Rule
from torchrec_qcomm.planner.job import Job, Machines, PlannedTable
from torchrec_qcomm.policy import Table

MIX = {
    "table_wise": 0.45,
    "column_wise": 0.2,
    "row_wise": 0.1,
    "table_row_wise": 0.1,
    "grid_shard": 0.05,
    "data_parallel": 0.05,
    "row_wise sequences": 0.05,
}
"""The share of tables of each kind of sharding. Row-wise tables have a shard on every rank."""

POLICY = Policy("fp8_e4m3", "fp8_e5m2", rules=(Rule(tables="t_*7", forward="int4"), Rule(link="intra_host", forward="bf16")))


def made_up_job(ranks: int, tables: int, devices_per_host: int = 8, batch_size: int = 2048, seed: int = 0) -> Job:
    """A job of ``tables`` tables on ``ranks`` ranks; the same for the same arguments."""
    draw = np.random.default_rng(seed)
    kinds = draw.choice(list(MIX), size=tables, p=list(MIX.values()))
    planned = tuple(_table(draw, f"t_{i}", str(kind), ranks, devices_per_host) for i, kind in enumerate(kinds))
    return Job(planned, Machines(ranks, devices_per_host), batch_size, POLICY)


def _table(draw: np.random.Generator, name: str, kind: str, ranks: int, local: int) -> PlannedTable:
    pooled = not kind.endswith("sequences")
    rows, dim = int(draw.integers(1_000, 10_000_000)), int(draw.choice([16, 32, 64, 128])) if pooled else 64
    kind = kind.split()[0]
    first = int(draw.integers(ranks))
    if kind == "data_parallel":
        shards: list[tuple[int, int, int, int]] = []
    elif kind == "table_wise":
        shards = [(first, rows, dim, 0)]
    elif kind == "column_wise":
        shards = [((first + i) % ranks, rows, dim // 2, 0) for i in range(2)]
    else:
        over = ranks if kind == "row_wise" else local
        width, hosts = (dim // 2, 2) if kind == "grid_shard" else (dim, 1)
        size, start = -(-rows // over), 0 if kind == "row_wise" else first // local
        shards = [
            ((start + host) * local % ranks + i, max(0, min(size, rows - i * size)), width, min(i * size, rows))
            for host in range(hosts)
            for i in range(over)
        ]
    columns = np.array(shards, dtype=np.int64).reshape(-1, 4).T
    features = tuple(f"{name}_{i}" for i in range(int(draw.integers(1, 3))))
    pooling = tuple(float(ids) for ids in draw.integers(1, 50, len(features)))
    module = "sparse.ebc" if pooled else "sparse.ec"
    return PlannedTable(Table(name, rows, dim), module, features, pooling, kind, *columns, pooled=pooled)
