"""A table sharded in another way, cut as TorchRec would cut it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torchrec_qcomm.planner.job import PlannedTable
from torchrec_qcomm.planner.kinds import COLUMN_WISE, DATA_PARALLEL, Kind
from torchrec_qcomm.planner.sources.shards import dealt_rows
from torchrec_qcomm.policy import Table


def data_parallel(table: PlannedTable) -> PlannedTable:
    """On all ranks."""
    return _cut(table, DATA_PARALLEL, [], [], [], [])


def by_rows(table: PlannedTable, ranks: Sequence[int], kind: Kind) -> PlannedTable:
    """Rows in blocks of ``ceil(rows / ranks)``, the last ones smaller or empty (``row_wise``, ``table_row_wise``)."""
    offsets, sizes = dealt_rows(table.table.rows, len(ranks))
    return _cut(table, kind, ranks, sizes, [table.table.dim] * len(ranks), offsets)


def by_columns(table: PlannedTable, ranks: Sequence[int]) -> PlannedTable | None:
    """Equal shards of columns; ``None`` if these would not have a multiple of 4 columns, which FBGEMM wants."""
    rows, dim = table.table.rows, table.table.dim
    if dim % (4 * len(ranks)):
        return None
    many = len(ranks)
    return _cut(table, COLUMN_WISE, ranks, [rows] * many, [dim // many] * many, [0] * many)


def narrower(table: PlannedTable, times: int) -> PlannedTable | None:
    """With ``1 / times`` of the columns in every shard; ``None`` where that is no whole number."""
    if (table.shard_dims % times).any() or table.table.dim % times:
        return None
    smaller = Table(table.table.name, table.table.rows, table.table.dim // times)
    return replace(table, table=smaller, shard_dims=table.shard_dims // times)


def _cut(
    table: PlannedTable,
    kind: Kind,
    ranks: Sequence[int],
    rows: Sequence[int] | np.ndarray,
    dims: Sequence[int],
    offsets: Sequence[int] | np.ndarray,
) -> PlannedTable:
    arrays = [np.asarray(values, dtype=np.int64) for values in (ranks, rows, dims, offsets)]
    return replace(
        table,
        sharding_type=kind.name,
        ranks=arrays[0],
        shard_rows=arrays[1],
        shard_dims=arrays[2],
        row_offsets=arrays[3],
    )
