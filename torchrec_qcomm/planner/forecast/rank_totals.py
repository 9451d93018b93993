"""What ranks own and look up, and the exchange of ids: lengths, ids and weights, from the samples' ranks to the owners.

For every feature, TorchRec's input dists (``KJTAllToAll``) send the lengths of all bags to each rank that has rows of the
table, and the ids of the rows that it has. Row-wise, every rank of the group gets all lengths. With variable batches the number
of bags goes along, for each feature and rank. The sizes of these messages come before them, a few numbers for each rank; they
are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchrec_qcomm.planner.forecast.counts import Counts, blocks_of
from torchrec_qcomm.planner.forecast.placement import Placement
from torchrec_qcomm.planner.forecast.table_hops import bags_of, ids_of, shares_of
from torchrec_qcomm.planner.job import REACHES, PlannedTable

STRIDE_BYTES = 8
"""TorchRec sends the number of bags as int64."""


@dataclass(frozen=True, slots=True, eq=False)
class TableIds:
    """The ids of one table in a step.

    Attributes:
        lookups: how many all ranks together look up.
        id_bytes: ``[reach]`` bytes in the exchange of ids: ids, lengths and weights.
    """

    lookups: float
    id_bytes: np.ndarray


class RankTotals:
    """What each rank owns, looks up and exchanges of ids: sums over tables.

    Attributes:
        ids_sent, ids_received: ``[world, reach]`` bytes.
        lookups: ``[world]`` ids.
        rows: ``[world]``.
        memory: ``[world]`` bytes of weights.
        sharded_memory: the same without data-parallel tables.
        dense_bytes: bytes of the gradients of data-parallel tables.
    """

    def __init__(self, placement: Placement, counts: Counts | None) -> None:
        world = placement.world
        self._placement, self._counts = placement, counts
        self.ids_sent, self.ids_received = np.zeros((world, len(REACHES))), np.zeros((world, len(REACHES)))
        self.lookups, self.rows, self.memory, self.sharded_memory = (np.zeros(world) for _ in range(4))
        self.dense_bytes = 0.0
        # Bytes that each owner receives for a sample; for expected numbers only.
        self._per_sample = np.zeros(world)
        self._batch = np.full(world, float(placement.job.batch_size))
        self._reached = placement.everyone.spread(self._batch)
        self._reached_ids = self._reached.sum(axis=1)

    def add(self, planned: PlannedTable) -> TableIds:
        """Add a table."""
        placement = self._placement
        if not planned.kind.hops:
            self.rows += planned.table.rows
            weights = planned.table.rows * planned.table.dim * planned.value_bytes
            self.memory += weights
            self.dense_bytes += weights  # a gradient has the dtype of its weight
            ids = self._batch * ids_of(planned) if self._counts is None else self._given(planned)[0].sum(axis=0)
            self.lookups += ids
            return TableIds(float(ids.sum()), np.zeros(len(REACHES)))
        owners, repeat = placement.owners(planned.ranks), len(placement.groups)
        np.add.at(self.rows, owners, np.tile(planned.shard_rows, repeat))
        owned = np.tile(planned.shard_rows * planned.shard_dims * planned.value_bytes, repeat)
        for memory in (self.memory, self.sharded_memory):
            np.add.at(memory, owners, owned)
        return self._expected(planned, owners) if self._counts is None else self._exactly(planned, owners, self._counts)

    def finish(self) -> None:
        """Make the sums of ids; to be called after the last table."""
        if self._counts is None and self._placement.group_size > 1:
            self.ids_sent = self._batch[:, None] * self._placement.everyone.spread(self._per_sample)
            self.ids_received = self._per_sample[:, None] * self._reached

    def _expected(self, planned: PlannedTable, owners: np.ndarray) -> TableIds:
        job = self._placement.job
        ids = np.tile(ids_of(planned) * shares_of(planned), len(self._placement.groups))
        looked_up = ids * self._reached_ids[owners]
        np.add.at(self.lookups, owners, looked_up)
        if self._placement.group_size == 1:
            return TableIds(float(looked_up.sum()), np.zeros(len(REACHES)))
        nbytes = ids * (job.index_bytes + planned.weighted * job.weight_bytes) + sum(bags_of(planned)) * job.length_bytes
        np.add.at(self._per_sample, owners, nbytes)
        return TableIds(float(looked_up.sum()), nbytes @ self._reached[owners])

    def _exactly(self, planned: PlannedTable, owners: np.ndarray, counts: Counts) -> TableIds:
        by_block, bags = self._given(planned)
        repeat = len(self._placement.groups)
        reach = self._placement.everyone.reach(owners)
        block = planned.ranks % len(by_block)
        ids = np.where(reach >= 0, np.tile(by_block[block], (repeat, 1)), 0)
        np.add.at(self.lookups, owners, ids.sum(axis=1))
        by_reach = np.zeros(len(REACHES))
        if self._placement.group_size > 1:
            each = counts.index_bytes + planned.weighted * counts.weight_bytes
            nbytes = ids * each + np.where(reach >= 0, bags * counts.length_bytes, 0)
            if planned.module in counts.variable:
                nbytes = nbytes + np.where(reach >= 0, len(planned.features) * STRIDE_BYTES, 0)
            for index in range(len(REACHES)):
                there = np.where(reach == index, nbytes, 0)
                np.add.at(self.ids_received[:, index], owners, there.sum(axis=1))
                self.ids_sent[:, index] += there.sum(axis=0)
                by_reach[index] = there.sum()
        return TableIds(float(ids.sum()), by_reach)

    def _given(self, planned: PlannedTable) -> tuple[np.ndarray, np.ndarray]:
        """Ids ``[blocks, world]`` and bags ``[world]`` of all features of a table."""
        assert self._counts is not None
        features = self._counts.of(planned)
        ids = np.sum([feature.ids for feature in features], axis=0)
        assert len(ids) == blocks_of(planned, self._placement)
        return ids, np.sum([feature.rows for feature in features], axis=0)
