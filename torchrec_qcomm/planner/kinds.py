"""TorchRec's sharding types, in one table of what differs between them.

TorchRec is not imported here: that takes seconds, and a config needs their names.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchrec_qcomm.errors import PlannerError, describe


@dataclass(frozen=True, slots=True)
class Kind:
    """One sharding type.

    Attributes:
        name: the value of TorchRec's ``ShardingType``.
        statistics: its abbreviation in the statistics of TorchRec's planner.
        short: its abbreviation in our reports.
        hops: exchanges that a pooled vector goes through: 0 where every rank has the whole table; 2 where the ranks of a host
            sum first. ``hierarchical_row_wise`` makes the one hop of ``row_wise`` two.
        rows_dealt_out: each shard has some of the rows, so that a hot id makes a hot rank; else each shard has all rows, of all
            columns or of some.
        sequence: whether an EmbeddingCollection may be sharded so, too; an EmbeddingBagCollection always may.
    """

    name: str
    statistics: str
    short: str
    hops: int
    rows_dealt_out: bool
    sequence: bool = False


DATA_PARALLEL = Kind("data_parallel", "DP", "dp", hops=0, rows_dealt_out=False, sequence=True)
TABLE_WISE = Kind("table_wise", "TW", "tw", hops=1, rows_dealt_out=False, sequence=True)
COLUMN_WISE = Kind("column_wise", "CW", "cw", hops=1, rows_dealt_out=False, sequence=True)
ROW_WISE = Kind("row_wise", "RW", "rw", hops=1, rows_dealt_out=True, sequence=True)
TABLE_ROW_WISE = Kind("table_row_wise", "TWRW", "twrw", hops=2, rows_dealt_out=True)
TABLE_COLUMN_WISE = Kind("table_column_wise", "TWCW", "twcw", hops=1, rows_dealt_out=False)
GRID_SHARD = Kind("grid_shard", "GS", "grid", hops=2, rows_dealt_out=True)

KINDS = (DATA_PARALLEL, TABLE_WISE, COLUMN_WISE, ROW_WISE, TABLE_ROW_WISE, TABLE_COLUMN_WISE, GRID_SHARD)
"""All of them, in TorchRec's order."""

_BY_NAME = {kind.name: kind for kind in KINDS}


def kind_of(name: str) -> Kind:
    """What is known of a sharding type.

    Raises:
        PlannerError: there is no such type.
    """
    if name not in _BY_NAME:
        raise PlannerError(describe("sharding type", "unknown", got=name, allowed=_BY_NAME))
    return _BY_NAME[name]
