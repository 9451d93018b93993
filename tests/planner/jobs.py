"""Small jobs, by hand and drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchrec_qcomm.planner.job import Job, Machines, PlannedTable, Replicas
from torchrec_qcomm.policy import Link, Policy, Rule, Table

Shards = list[tuple[int, int, int, int]]
"""Rank, rows, dim, first row."""


def planned(name: str, kind: str, shards: Shards, rows: int = 100, dim: int = 8, **options: Any) -> PlannedTable:
    """A table of one feature of its name, unless ``options`` say otherwise."""
    columns = np.array(shards, dtype=np.int64).reshape(-1, 4).T
    pooled = options.get("pooled", True)
    settings = {"features": (name,), "pooling": (1.0,), "module": "bags" if pooled else "sequences", **options}
    return PlannedTable(
        table=Table(name, rows, dim),
        sharding_type=kind,
        **dict(zip(("ranks", "shard_rows", "shard_dims", "row_offsets"), columns, strict=True)),
        **settings,
    )


def whole(name: str, rank: int, rows: int = 100, dim: int = 8, **options: Any) -> PlannedTable:
    """Table-wise."""
    return planned(name, "table_wise", [(rank, rows, dim, 0)], rows, dim, **options)


def dealt(rows: int, dim: int, ranks: Sequence[int]) -> Shards:
    """Rows in blocks over ranks, as TorchRec deals them out."""
    size = -(-rows // len(ranks))
    return [(rank, min(rows, (i + 1) * size) - min(rows, i * size), dim, min(rows, i * size)) for i, rank in enumerate(ranks)]


POOLED = ("table_wise", "column_wise", "table_column_wise", "row_wise", "table_row_wise", "grid_shard", "data_parallel")
CODECS = ("none", "fp16", "int8", "int4", "fp8_e4m3")


def drawn(seed: int) -> Job:
    """A job of a few tables of any kinds, on hosts of any size, with pods, replicas and rules by link, or without."""
    draw = np.random.default_rng(seed)
    hosts, local = int(draw.integers(1, 5)), int(draw.choice([1, 2, 4]))
    world = hosts * local
    sizes = [size for size in range(1, world + 1) if world % size == 0]
    replicas = Replicas(int(draw.choice(sizes)), strided=bool(draw.integers(2))) if draw.integers(2) else None
    group = replicas.group_size if replicas else world
    tables = [_drawn(draw, f"t{i}", group, local) for i in range(draw.integers(1, 8))]
    names, links = [table.table.name for table in tables], [None, *Link]
    rules = tuple(
        Rule(str(draw.choice(names)), link=draw.choice(links), forward=str(one), backward=str(other))
        for one, other in draw.choice(CODECS, (4, 2))
    )
    # Neighbours of a group are one host's only if groups are made of whole hosts.
    hierarchical = bool(draw.integers(2)) and replicas is None
    pods = int(draw.choice([pod for pod in (1, 2) if hosts % pod == 0]))
    return Job(
        tuple(tables),
        Machines(world, local, pods),
        int(draw.integers(1, 9)),
        Policy("int8", "fp16", rules),
        hierarchical,
        replicas,
    )


def _drawn(draw: np.random.Generator, name: str, group: int, local: int) -> PlannedTable:
    pooled = bool(draw.random() < 0.7)
    kind = str(draw.choice(POOLED if pooled else ("table_wise", "column_wise", "row_wise")))
    if group % local and kind in ("table_row_wise", "grid_shard"):
        kind = "row_wise"
    rows, dim = int(draw.integers(1, 40)), int(draw.integers(1, 33))
    if kind == "data_parallel":
        shards: Shards = []
    elif kind == "row_wise":
        shards = dealt(rows, dim, range(group))
    elif kind in ("table_row_wise", "grid_shard"):
        shards = []
        for width in (dim, dim + 1)[: 1 + (kind == "grid_shard")]:
            first = int(draw.integers(group // local)) * local
            shards += dealt(rows, width, range(first, first + local))
    else:  # with columns, maybe twice on one rank
        widths = (dim,) if kind == "table_wise" else (dim, dim + 1)
        shards = [(int(draw.integers(group)), rows, width, 0) for width in widths]
    features = tuple(f"{name}_{i}" for i in range(draw.integers(1, 3)))
    return planned(
        name,
        kind,
        shards,
        rows,
        2 * dim + 1 if kind in ("grid_shard", "column_wise", "table_column_wise") else dim,
        features=features,
        pooling=tuple(float(ids) for ids in draw.integers(0, 5, len(features))),
        pooled=pooled,
        weighted=bool(draw.integers(2)),
        module=f"{'bags' if pooled else 'sequences'}.{draw.integers(2)}",
    )
