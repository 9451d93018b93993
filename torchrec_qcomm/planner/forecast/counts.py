"""The rows and ids of given batches, counted for every feature and rank. They replace what pooling factors say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from torchrec_qcomm.errors import PlannerError, describe
from torchrec_qcomm.planner.forecast.placement import Placement
from torchrec_qcomm.planner.job import Job, PlannedTable
from torchrec_qcomm.planner.kinds import ROW_WISE

Batch: TypeAlias = KeyedJaggedTensor | Mapping[str, KeyedJaggedTensor]
"""A rank's batch for all collections, or one for each path of a collection."""


@dataclass(frozen=True, slots=True, eq=False)
class FeatureCounts:
    """One feature of one table.

    Attributes:
        rows: int64 ``[world]``: each rank's bags. These are its samples, or with variable batch its distinct rows.
        ids: int64 ``[blocks, world]``: each rank's ids in each block of the table's rows. If the sharding deals rows out, each
            rank that has some is a block, in the order of ranks; else there is one block.
    """

    rows: np.ndarray
    ids: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """The batches of one step, at all ranks.

    Attributes:
        features: by path of the collection, table and feature.
        variable: paths of the collections in which every feature has a batch size of its own.
        index_bytes: of an id.
        length_bytes: of a length.
        weight_bytes: of the weight of an id.
    """

    features: Mapping[tuple[str, str, str], FeatureCounts]
    variable: frozenset[str] = frozenset()
    index_bytes: int = 8
    length_bytes: int = 8
    weight_bytes: int = 4

    def of(self, planned: PlannedTable) -> list[FeatureCounts]:
        """The counts of a table's features.

        Raises:
            PlannerError: a feature was not counted.
        """
        keys = [(planned.module, planned.table.name, feature) for feature in planned.features]
        if missing := [key for key in keys if key not in self.features]:
            allowed = sorted({name for _, _, name in self.features})
            raise PlannerError(describe("counts", "not counted for this job", got=missing[0], allowed=allowed))
        return [self.features[key] for key in keys]


def blocks_of(planned: PlannedTable, placement: Placement) -> int:
    """Into how many blocks the rows of a table are dealt out."""
    if not planned.kind.rows_dealt_out:
        return 1
    return placement.group_size if planned.kind is ROW_WISE else placement.local_size(planned)


def count_batches(batches: Sequence[Batch], job: Job) -> Counts:
    """Count one batch of every rank.

    Args:
        batches: for each global rank, its batch.
        job: the tables that look up the batches.

    Raises:
        PlannerError: there is not one batch for each rank, a feature is missing, an id has no row, or ranks have other dtypes.
    """
    placement = Placement(job)
    if len(batches) != placement.world:
        raise PlannerError(describe("batches", "not one for each rank", got=len(batches), allowed=str(placement.world)))
    by_module = {
        planned.module: [batch[planned.module] if isinstance(batch, Mapping) else batch for batch in batches]
        for planned in job.tables
    }
    features = {}
    for planned in job.tables:
        blocks = blocks_of(planned, placement)
        for feature in planned.features:
            counted = [_count(batch, feature, planned, blocks) for batch in by_module[planned.module]]
            rows, ids = np.array([rows for rows, _ in counted]), np.stack([ids for _, ids in counted], axis=1)
            features[planned.module, planned.table.name, feature] = FeatureCounts(rows, ids)
    everything = [batch for batches in by_module.values() for batch in batches]
    variable = {
        planned.module
        for planned in job.tables
        # TorchRec writes sequences out to one batch size before it sends their ids.
        if planned.pooled and any(batch.variable_stride_per_key() for batch in by_module[planned.module])
    }
    return Counts(
        features,
        frozenset(variable),
        _size("values", {batch.values().dtype for batch in everything}),
        _size("lengths", {batch.lengths().dtype for batch in everything}),
        _size("weights", {weights.dtype for batch in everything if (weights := batch.weights_or_none()) is not None}, 4),
    )


def _count(batch: KeyedJaggedTensor, feature: str, planned: PlannedTable, blocks: int) -> tuple[int, np.ndarray]:
    """A feature's bags, and its ids in each block of rows."""
    keys = batch.keys()
    if feature not in keys:
        raise PlannerError(describe(f"table {planned.table.name!r}", "no such feature", got=feature, allowed=keys))
    index = keys.index(feature)
    strides = batch.stride_per_key()
    rows = strides[index] if planned.pooled else max(strides)
    start, end = batch.offset_per_key()[index : index + 2]
    if blocks == 1:
        return rows, np.array([end - start])
    ids = batch.values()[start:end].numpy(force=True).astype(np.int64)
    if len(ids) and not 0 <= ids.min() <= ids.max() < planned.table.rows:
        wrong, got = f"feature {feature!r} has an id without a row", [int(ids.min()), int(ids.max())]
        raise PlannerError(describe(f"table {planned.table.name!r}", wrong, got=got, allowed=f"0 to {planned.table.rows - 1}"))
    # As TorchRec's input dists have it: blocks of equal size, the last one with what is left.
    return rows, np.bincount(ids // -(-planned.table.rows // blocks), minlength=blocks)


def _size(what: str, dtypes: set[torch.dtype], default: int = 8) -> int:
    sizes = {dtype.itemsize for dtype in dtypes} or {default}
    if len(sizes) > 1:
        wrong = "ranks or collections have other dtypes"
        raise PlannerError(describe(f"batches: {what}", wrong, got=sorted(map(str, dtypes)), allowed="one dtype"))
    return sizes.pop()
