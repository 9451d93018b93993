"""How evenly ranks are loaded, and which tables make the difference: lookups, bytes, rows and memory, each by itself.

They are kept apart because they differ: memory can be even where lookups are not, and so can bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from torchrec_qcomm.planner.findings.lookups import LookupProfile
from torchrec_qcomm.planner.findings.results import Load
from torchrec_qcomm.planner.forecast.results import Forecast, TableForecast
from torchrec_qcomm.planner.job import Job, PlannedTable
from torchrec_qcomm.policy import Direction

AT_FAULT = 1.1
"""A rank is at fault above this times the mean."""

RANKS, TABLES = 5, 5
"""How many ranks and tables a load names at most."""

_ASKED = 12
"""How many tables of a rank, the heaviest by a guess, have their bytes forecast one by one."""

Predict = Callable[[Job], Forecast]


def loads(forecast: Forecast, predict: Predict, profile: LookupProfile | None = None) -> tuple[Load, ...]:
    """All loads. With a profile, counted lookups stand behind the assumed ones.

    Args:
        forecast: of the job.
        predict: forecasts a job; used for the bytes of single tables.
        profile: of the job's tables.
    """
    job = forecast.job
    found = [_load("lookups", "ids a step", forecast.lookups, _lookups_on(forecast))]
    if profile is not None:
        found.append(_load("lookups", "ids a step", profile.per_rank(job), lambda rank: profile.on(job, rank), measured=True))
    for what, by_reach in (("bytes sent", _sent), ("bytes received", _received)):
        found.append(_load(what, "B a step", _off_rank(by_reach(forecast)), _bytes_on(forecast, predict, by_reach)))
    found.append(_load("rows", "rows", forecast.rows, _owned_on(forecast, _shard_rows)))
    found.append(_load("memory", "B", forecast.memory, _owned_on(forecast, _shard_bytes)))
    return tuple(found)


def ranks_at_fault(per_rank: np.ndarray) -> tuple[int, ...]:
    """At most `RANKS` ranks above `AT_FAULT` x mean, the most loaded first, equal ones in the order of ranks."""
    order = np.argsort(-per_rank, kind="stable")[:RANKS]
    return tuple(int(rank) for rank in order if per_rank[rank] > AT_FAULT * per_rank.mean())


_OnRank = Callable[[int], Iterable[tuple[str, float]]]


def _load(what: str, unit: str, per_rank: np.ndarray, on: _OnRank, measured: bool = False) -> Load:
    rank = int(np.argmax(per_rank))
    whole = float(per_rank[rank])
    by_table: dict[str, float] = {}
    for name, amount in on(rank) if whole else ():
        by_table[name] = by_table.get(name, 0.0) + amount
    heaviest = sorted(by_table.items(), key=lambda item: item[1], reverse=True)[:TABLES]
    tables = tuple((name, float(amount / whole)) for name, amount in heaviest if amount)
    return Load(what, unit, per_rank, ranks_at_fault(per_rank), tables, measured)


def _lookups_on(forecast: Forecast) -> _OnRank:
    """Each table's lookups on a rank, from pooling factors: shards that share the rows have ids in proportion to theirs."""
    place, groups = _places(forecast.job), len(forecast.job.groups())

    def on(rank: int) -> Iterable[tuple[str, float]]:
        for entry in forecast.tables:
            table = entry.planned
            if not len(table.ranks):
                yield table.table.name, entry.lookups / len(place)
            elif (here := table.ranks == place[rank]).any():
                weights = table.shard_rows / table.table.rows
                yield table.table.name, entry.lookups / groups * weights[here].sum() / weights.sum()

    return on


def _owned_on(forecast: Forecast, size: Callable[[PlannedTable], np.ndarray]) -> _OnRank:
    place = _places(forecast.job)

    def on(rank: int) -> Iterable[tuple[str, float]]:
        for entry in forecast.tables:
            table = entry.planned
            here = table.ranks == place[rank] if len(table.ranks) else slice(None)  # data-parallel: one, on all ranks
            yield table.table.name, float(size(table)[here].sum())

    return on


def _shard_rows(table: PlannedTable) -> np.ndarray:
    return table.shard_rows if len(table.ranks) else np.array([table.table.rows])


def _shard_bytes(table: PlannedTable) -> np.ndarray:
    dims = table.shard_dims if len(table.ranks) else table.table.dim
    return _shard_rows(table) * dims * table.value_bytes


def _bytes_on(forecast: Forecast, predict: Predict, by_reach: Callable[[Forecast], np.ndarray]) -> _OnRank:
    """Each table's bytes on a rank. They are exact: each table is forecast alone, since bytes of tables add up."""
    job, place = forecast.job, _places(forecast.job)

    def guess(entry: TableForecast, rank: int) -> float:
        table, wire = entry.planned, float(entry.wire[Direction.FORWARD][1:].sum())
        if by_reach is _received or not len(table.ranks):
            return wire
        return wire * float(_shard_bytes(table)[table.ranks == place[rank]].sum()) / float(_shard_bytes(table).sum())

    def on(rank: int) -> Iterable[tuple[str, float]]:
        heaviest = sorted(forecast.tables, key=lambda entry: guess(entry, rank), reverse=True)[:_ASKED]
        for entry in heaviest:
            alone = predict(replace(job, tables=(entry.planned,)))
            yield entry.planned.table.name, float(_off_rank(by_reach(alone))[rank])

    return on


def _sent(forecast: Forecast) -> np.ndarray:
    return forecast.sent([Direction.FORWARD])


def _received(forecast: Forecast) -> np.ndarray:
    return forecast.received([Direction.FORWARD])


def _off_rank(by_reach: np.ndarray) -> np.ndarray:
    return by_reach[:, 1:].sum(axis=1)


def _places(job: Job) -> np.ndarray:
    """For each global rank, its place in its sharding group."""
    place = np.zeros(job.machines.world_size, dtype=np.int64)
    for group in job.groups():
        place[group] = np.arange(len(group))
    return place
