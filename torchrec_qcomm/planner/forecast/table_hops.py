"""The hops of each table: which owners send how many of its rows to the ranks that have the samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchrec_qcomm.errors import PlannerError, describe
from torchrec_qcomm.planner.forecast.counts import Counts
from torchrec_qcomm.planner.forecast.placement import Peers, Placement
from torchrec_qcomm.planner.job import PlannedTable
from torchrec_qcomm.planner.kinds import KINDS, ROW_WISE


@dataclass(frozen=True, slots=True, eq=False)
class TableHop:
    """One table in one hop, forward: owners send rows to their peers.

    An owner sends ``scale * unit[peer]`` rows to each peer. Where owners differ by more than a factor, it sends ``rows``.

    Attributes:
        planned: the table.
        number: 0 for the first hop, 1 for the second.
        peers: who exchanges with whom.
        summed: the owners of a set have the same columns, and the receivers add up what these send.
        owners: int64 ``[owners]``: global ranks. A rank with two shards is there twice.
        everywhere: the owners are all ranks, in order.
        dims: ``[owners]``: values in a row.
        scale: ``[owners]``: see above.
        unit: ``[world]``: see above.
        rows: ``[owners, world]``, or ``None``.
    """

    planned: PlannedTable
    number: int
    peers: Peers
    summed: bool
    owners: np.ndarray
    everywhere: bool
    dims: np.ndarray
    scale: np.ndarray
    unit: np.ndarray
    rows: np.ndarray | None = None

    @property
    def first(self) -> np.ndarray:
        """``[owners]``: whether this is the first shard of the table at its rank. The range header is counted with it."""
        first = np.zeros(len(self.owners), bool)
        first[np.unique(self.owners, return_index=True)[1]] = True
        return first

    def pairs(self, reach: np.ndarray) -> np.ndarray:
        """``[owners, world]``: the rows that each owner sends to each rank; ``reach`` as `Peers.reach` has it of the owners."""
        rows = self.scale[:, None] * self.unit if self.rows is None else self.rows
        return np.where(reach >= 0, rows, 0)


def ids_of(planned: PlannedTable) -> float:
    """Ids of a sample, over all features of the table."""
    return float(sum(ids * bags for ids, bags in zip(planned.pooling, bags_of(planned), strict=True)))


def bags_of(planned: PlannedTable) -> tuple[float, ...]:
    """Bags of a sample, for each feature."""
    return planned.num_poolings or (1.0,) * len(planned.features)


def shares_of(planned: PlannedTable) -> np.ndarray:
    """``[shards]``: the share of the table's ids that each shard looks up, if all rows are looked up equally often."""
    if planned.kind.rows_dealt_out:
        return planned.shard_rows / planned.table.rows
    return np.ones(len(planned.ranks))


def check(planned: PlannedTable) -> None:
    """Refuse tables that cannot be forecast.

    Raises:
        PlannerError: the kind of sharding is not known for such tables, or sizes do not fit each other.
    """
    where = f"table {planned.table.name!r}"
    known = [kind.name for kind in KINDS if planned.pooled or kind.sequence]
    if planned.sharding_type not in known:
        wrong = f"no such sharding of {'pooled tables' if planned.pooled else 'sequences'}"
        raise PlannerError(describe(where, wrong, got=planned.sharding_type, allowed=known))
    features = len(planned.features)
    for what, numbers in (("pooling", planned.pooling), ("num_poolings", planned.num_poolings or planned.features)):
        if len(numbers) != features:
            raise PlannerError(describe(f"{where}: {what}", "not one for each feature", got=numbers, allowed=planned.features))
    sizes = {len(each) for each in (planned.ranks, planned.shard_rows, planned.shard_dims, planned.row_offsets)}
    if len(sizes) > 1 or (planned.kind.hops and not len(planned.ranks)):
        wrong, allowed = "not a rank, rows, dim and row offset for each shard", "arrays of one length"
        raise PlannerError(describe(where, wrong, got=sorted(sizes), allowed=allowed))


def hops_of(planned: PlannedTable, placement: Placement, counts: Counts | None) -> list[TableHop]:
    """The hops of a table. A data-parallel table has none, nor has one without another rank to exchange with.

    Raises:
        PlannerError: the shards do not fit the ranks and hosts.
    """
    kind, ranks, dims = planned.kind, planned.ranks, planned.shard_dims
    if not kind.hops:
        return []
    batch, each = _rows(planned, placement, counts)
    everyone, repeat = placement.everyone, len(placement.groups)
    if kind.hops == 2:
        local = placement.local_size(planned)
        firsts = np.flatnonzero(ranks % local == 0)  # for each shard of columns, the first rank of its host
        owners = placement.owners((ranks[firsts, None] + np.arange(local)).ravel())
        dims = np.tile(np.repeat(dims[firsts], local), repeat)
        within, across = placement.hops(local)
        steps = [(within, True, across.total(batch)), (across, False, batch)]
    elif kind is ROW_WISE and planned.pooled:
        owners, dims = np.arange(placement.world), np.broadcast_to(dims[:1], placement.world)
        steps = [(everyone, True, batch)]
        local = placement.summing_ranks("hierarchical_row_wise") if placement.job.hierarchical_row_wise else 1
        if local > 1:
            within, across = placement.hops(local)
            steps = [(within, True, across.total(batch)), (across, True, batch)]
    else:
        owners, dims = placement.owners(ranks), np.tile(dims, repeat)
        steps = [(everyone, False, batch)]
    everywhere = len(owners) == placement.world and bool((owners == np.arange(placement.world)).all())
    scale = np.tile(each, repeat) if len(each) > 1 else np.broadcast_to(each, len(owners))
    rows = None
    if counts is not None and kind is ROW_WISE and not planned.pooled:
        # The counts say which owner has an id's row; an owner's share of all rows is not needed.
        blocks = np.sum([feature.ids for feature in counts.of(planned)], axis=0)
        rows = np.tile(blocks[ranks], (repeat, 1))
    hops = [
        TableHop(planned, number, peers, summed, owners, everywhere, dims, scale, unit, rows)
        for number, (peers, summed, unit) in enumerate(steps)
    ]
    return [hop for hop in hops if hop.peers.size > 1]


def _rows(planned: PlannedTable, placement: Placement, counts: Counts | None) -> tuple[np.ndarray, np.ndarray]:
    """`TableHop.unit` of the last hop, and `TableHop.scale` for each shard, or one for all of them."""
    if counts is not None:
        features = counts.of(planned)
        found = np.sum([feature.rows if planned.pooled else feature.ids.sum(axis=0) for feature in features], axis=0)
        return found.astype(float), np.ones(1)
    batch = np.full(placement.world, float(placement.job.batch_size))
    if planned.pooled:
        return batch, np.array([float(sum(bags_of(planned)))])
    return batch, ids_of(planned) * shares_of(planned)
