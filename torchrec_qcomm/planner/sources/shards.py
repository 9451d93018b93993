"""Which rank has which shard, as TorchRec will have it, and how it deals out rows."""

from __future__ import annotations

import numpy as np
from torchrec.distributed.types import ParameterSharding

from torchrec_qcomm.planner.kinds import ROW_WISE


def ranks_of(sharding: ParameterSharding) -> list[int]:
    """The rank of each shard of a table in a ``ShardingPlan``; empty for a data-parallel table.

    Row-wise, TorchRec gives shard ``i`` to rank ``i``, whatever ranks a plan names (rw_sharding.py:239). A plan by hand may
    name fewer ranks than shards, for instance the first rank of a table-row-wise table's host: then placements tell, which
    TorchRec checks when it shards.
    """
    shards = sharding.sharding_spec.shards if sharding.sharding_spec is not None else []
    if sharding.sharding_type == ROW_WISE.name:
        return list(range(len(shards)))
    named = list(sharding.ranks or ())
    return named if len(named) == len(shards) else [shard.placement.rank() for shard in shards]


def dealt_rows(rows: int, parts: int) -> tuple[np.ndarray, np.ndarray]:
    """First row and number of rows of each part: blocks of ``ceil(rows / parts)``, the last ones smaller or empty.

    As TorchRec deals rows out (sharding_plan.py:185).

    >>> dealt_rows(5, 4)
    (array([0, 2, 4, 5]), array([2, 2, 1, 0]))
    """
    block = -(-rows // parts)
    offsets = np.minimum(np.arange(parts, dtype=np.int64) * block, rows)
    return offsets, np.minimum(rows - offsets, block)
