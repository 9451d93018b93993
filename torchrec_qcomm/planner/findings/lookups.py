"""Which ids real batches look up, and so how many each rank of a row-wise table really receives.

A planner assumes that a table's ids are spread evenly over its rows. Here they are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from torchrec_qcomm.errors import PlannerError, describe
from torchrec_qcomm.planner.job import Job
from torchrec_qcomm.planner.sources.shards import ranks_of

if TYPE_CHECKING:
    from torchrec.distributed.types import ShardingPlan
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

HOTTEST = 10
"""Ids that a profile names."""

KEPT_IDS = 1_000_000
"""How many ids of a table are counted one by one, with 16 bytes each. Of more ids, those seen most are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class RowShards:
    """Where the rows of a table are, as far as a ``ShardingPlan`` tells it.

    Attributes:
        table, module: name of the table, and path of its collection.
        rows: of the whole table.
        features: names of the features that look into it.
        ranks: ``[shards]``: the rank of each shard in the sharding group. Empty for a data-parallel table, which is on all.
        offsets, sizes: ``[shards]``: first row and number of rows of each shard.
    """

    table: str
    module: str
    rows: int
    features: tuple[str, ...]
    ranks: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray

    @property
    def by_rows(self) -> bool:
        """Whether the rows are dealt out, so that a hot id makes a hot rank."""
        return len(self.sizes) > 0 and bool((self.sizes < self.rows).any())


@dataclass(frozen=True, slots=True, eq=False)
class TableProfile:
    """What was counted of one table.

    Attributes:
        shards: where its rows are.
        lookups: ids that were looked up.
        per_shard: int64 ``[shards]``: how many of them each shard gets. A shard of columns gets all.
        hottest: at most 10 ids, the hottest first, each with its count.
        distinct: how many ids were counted one by one.
        missed: by how much a count of one id may be too low; 0: counts are exact.
    """

    shards: RowShards
    lookups: int
    per_shard: np.ndarray
    hottest: tuple[tuple[int, int], ...]
    distinct: int
    missed: int

    @property
    def hot_share(self) -> float:
        """The share of the hottest ids in all lookups, 0 to 1."""
        return sum(count for _, count in self.hottest) / self.lookups if self.lookups else 0.0

    @property
    def owner(self) -> tuple[int, float] | None:
        """The rank of the sharding group that gets most lookups, and their number over the mean of the table's ranks.

        ``None`` where rows are not dealt out, or nothing was looked up.
        """
        if not self.shards.by_rows or not self.lookups:
            return None
        ranks, place = np.unique(self.shards.ranks, return_inverse=True)
        loads = np.bincount(place, weights=self.per_shard)
        return int(ranks[loads.argmax()]), float(loads.max() / loads.mean())


@dataclass(frozen=True, slots=True, eq=False)
class LookupProfile:
    """What was counted of all tables.

    Attributes:
        tables: in the order of the plan.
        batches: how many there were.
        samples: of all batches together, by `KeyedJaggedTensor.stride`: in a variable batch, those of the largest feature.
    """

    tables: tuple[TableProfile, ...]
    batches: int
    samples: int

    def per_rank(self, job: Job) -> np.ndarray:
        """``[world]`` ids that each rank looks up in a step of ``job``, if all ranks' samples are like those counted.

        Raises:
            PlannerError: the profile is of other tables or shards.
        """
        loads = np.zeros(job.machines.world_size)
        entries = self.of(job)
        for group in job.groups():
            for entry in entries:
                if len(entry.shards.ranks):
                    np.add.at(loads, np.asarray(group)[entry.shards.ranks], entry.per_shard * self._scale(job, len(group)))
                else:
                    loads[group] += entry.lookups * self._scale(job, 1)
        return loads

    def on(self, job: Job, rank: int) -> Iterable[tuple[str, float]]:
        """The tables that a global rank looks into, and how many ids of each a step."""
        group = next(group for group in job.groups() if rank in group)
        for entry in self.of(job):
            here = entry.per_shard[entry.shards.ranks == group.index(rank)].sum() * self._scale(job, len(group))
            yield entry.shards.table, float(here if len(entry.shards.ranks) else entry.lookups * self._scale(job, 1))

    def of(self, job: Job) -> tuple[TableProfile, ...]:
        """The profiles of a job's tables, in its order.

        Raises:
            PlannerError: the profile is of other tables or shards.
        """
        known = {(entry.shards.module, entry.shards.table): entry for entry in self.tables}
        found = []
        for table in job.tables:
            entry = known.get((table.module, table.table.name))
            if entry is None or not np.array_equal(entry.shards.ranks, table.ranks):
                got = None if entry is None else entry.shards.ranks.tolist()
                where = f"profile of lookups: table {table.table.name!r} of module {table.module!r}"
                raise PlannerError(describe(where, "not profiled on these ranks", got=got, allowed=str(table.ranks.tolist())))
            found.append(entry)
        return tuple(found)

    def _scale(self, job: Job, ranks: int) -> float:
        return job.batch_size * ranks / self.samples if self.samples else 0.0


def profile_lookups(
    batches: Iterable[KeyedJaggedTensor],
    plan: Job | ShardingPlan,
    features: Mapping[str, Sequence[str]] | None = None,
    kept_ids: int = KEPT_IDS,
) -> LookupProfile:
    """Count which ids batches look up.

    A row-wise shard gets the ids of its rows, as the offsets of the plan say.

    Args:
        batches: of any ranks. Features may have batch sizes of their own, and batches may be empty. Weights of ids, and
            features that no table has, are not looked at.
        plan: which ranks own which rows.
        features: the features of each table, for a ``ShardingPlan``, which names none
            (``{entry.table.name: entry.features for entry in model_tables(model)}``).
        kept_ids: how many ids of a table are counted one by one. The number of ids that a shard gets is always exact.

    Raises:
        PlannerError: a batch lacks a feature, an id is not a row of its table, or ``features`` lacks a table.
    """
    counters = [_Counter(shards, kept_ids) for shards in (_of_job(plan) if isinstance(plan, Job) else _of_plan(plan, features))]
    many = samples = 0
    for batch in batches:
        many += 1
        samples += int(batch.stride())
        keys, offsets, ids = batch.keys(), batch.offset_per_key(), batch.values()
        spans = dict(zip(keys, pairwise(offsets), strict=True))
        for counter in counters:
            if missing := [name for name in counter.shards.features if name not in spans]:
                where = f"profile_lookups: table {counter.shards.table!r}"
                raise PlannerError(describe(where, "a batch lacks its feature", got=missing[0], allowed=keys))
            for name in counter.shards.features:
                first, last = spans[name]
                counter.add(ids[first:last])
    return LookupProfile(tuple(counter.profile() for counter in counters), many, samples)


class _Counter:
    """Counts the ids of one table: those of each shard, exactly, and those of each id, for the ids seen most."""

    def __init__(self, shards: RowShards, kept_ids: int) -> None:
        self.shards, self._kept = shards, max(kept_ids, HOTTEST)
        self._per_shard = np.zeros(len(shards.ranks), dtype=np.int64)
        self._ids = self._counts = torch.zeros(0, dtype=torch.int64)
        self._lookups = self._missed = 0

    def add(self, ids: torch.Tensor) -> None:
        if not ids.numel():
            return
        unique, counts = torch.unique(ids, return_counts=True)
        unique, counts = unique.to("cpu", torch.int64), counts.cpu()
        for end in (int(unique[0]), int(unique[-1])):
            if not 0 <= end < self.shards.rows:
                where = f"profile_lookups: table {self.shards.table!r}"
                todo = "Profile ids as the table gets them, after they were remapped."
                raise PlannerError(describe(where, "not a row", got=end, allowed=f"0 to {self.shards.rows - 1}", todo=todo))
        self._lookups += int(counts.sum())
        before = np.concatenate([[0], counts.cumsum(0).numpy()])
        first = np.searchsorted(unique.numpy(), self.shards.offsets)
        last = np.searchsorted(unique.numpy(), self.shards.offsets + self.shards.sizes)
        self._per_shard += before[last] - before[first]
        self._merge(unique, counts)

    def _merge(self, ids: torch.Tensor, counts: torch.Tensor) -> None:
        merged, place = torch.unique(torch.cat([self._ids, ids]), return_inverse=True)
        total = torch.zeros(len(merged), dtype=torch.int64).index_add_(0, place, torch.cat([self._counts, counts]))
        if len(merged) > self._kept:
            total, kept = total.topk(self._kept + 1)
            self._missed += int(total[-1])  # no id that is dropped here had more lookups
            order = kept[:-1].sort()
            merged, total = merged[order.values], total[:-1][order.indices]
        self._ids, self._counts = merged, total

    def profile(self) -> TableProfile:
        hot = self._counts.sort(descending=True, stable=True).indices[:HOTTEST]
        hottest = tuple(zip(self._ids[hot].tolist(), self._counts[hot].tolist(), strict=True))
        return TableProfile(self.shards, self._lookups, self._per_shard, hottest, len(self._ids), self._missed)


def _of_job(job: Job) -> list[RowShards]:
    return [
        RowShards(
            table.table.name, table.module, table.table.rows, table.features, table.ranks, table.row_offsets, table.shard_rows
        )
        for table in job.tables
    ]


def _of_plan(plan: ShardingPlan, features: Mapping[str, Sequence[str]] | None) -> list[RowShards]:
    found = []
    for path, module in plan.plan.items():
        for name, sharding in module.items():
            if name not in (features or {}):
                wrong, todo = "a ShardingPlan names no features: pass those of this table", "Or pass a Job."
                raise PlannerError(
                    describe(f"profile_lookups: features: table {name!r}", wrong, got=None, allowed=features or (), todo=todo)
                )
            shards = sharding.sharding_spec.shards if sharding.sharding_spec is not None else []
            offsets = [shard.shard_offsets[0] for shard in shards]
            sizes = [shard.shard_sizes[0] for shard in shards]
            rows = max((offset + size for offset, size in zip(offsets, sizes, strict=True)), default=0)
            arrays = (np.asarray(values, dtype=np.int64) for values in (ranks_of(sharding), offsets, sizes))
            found.append(RowShards(name, path, rows or _ANY, tuple((features or {})[name]), *arrays))
    return found


_ANY = 2**63 - 1
"""Stands for the rows of a data-parallel table, whose number a plan does not tell."""
