"""Ranks that have more than their share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from torchrec_qcomm.planner import units as u
from torchrec_qcomm.planner.advice import reshard
from torchrec_qcomm.planner.advice.advised_job import AdvisedJob
from torchrec_qcomm.planner.advice.wording import constraint, glob_of
from torchrec_qcomm.planner.findings.results import Advice, Load
from torchrec_qcomm.planner.forecast.results import Forecast
from torchrec_qcomm.planner.job import PlannedTable
from torchrec_qcomm.planner.kinds import COLUMN_WISE, ROW_WISE
from torchrec_qcomm.policy import Direction

UNTIMED = "The time of lookups themselves is not estimated: the gain is that of the exchange alone."

Measure = Callable[[Forecast], np.ndarray]


def uneven_lookups(advised: AdvisedJob) -> list[Advice]:
    """A rank that looks up more than its share; counted where there is a profile."""
    known = [load for load in advised.loads if load.what == "lookups"]
    load = next((each for each in known if each.measured), known[0])
    return _relieve(advised, load, "uneven_lookups", lambda forecast: forecast.lookups)


def uneven_bytes(advised: AdvisedJob) -> list[Advice]:
    """A rank that sends more than its share of vectors."""
    load = next(each for each in advised.loads if each.what == "bytes sent")
    return _relieve(advised, load, "uneven_bytes", lambda forecast: forecast.sent([Direction.FORWARD])[:, 1:].sum(axis=1))


_Option = tuple[str, str, PlannedTable]


def _relieve(advised: AdvisedJob, load: Load, adviser: str, measure: Measure) -> list[Advice]:
    """Move or split the heaviest table that the most loaded rank owns whole."""
    if not load.worst:
        return []
    worst, groups = load.worst[0], advised.job.groups()
    place = next(group.index(worst) for group in groups if worst in group)
    per_place = load.per_rank[np.array(groups)].mean(axis=0)
    for name, share in load.tables:
        for index, table in enumerate(advised.job.tables):
            if table.table.name == name and not table.kind.rows_dealt_out and place in table.ranks:
                best = _best(advised, load, measure, index, list(_options(table, place, per_place)))
                if best is None or (best[2] <= 0 and load.what != "lookups"):
                    continue
                (title, setting, _), after, gain = best
                because = (
                    f"Rank {worst} has {load.max_over_mean:.2f} x the mean of {load.what} "
                    f"({u.amount(float(load.per_rank[worst]), load.unit)}), {u.share(share)} of it from {name}; "
                    f"it would then be {after.max() / after.mean():.2f} x."
                )
                if load.what == "lookups":
                    because = f"{because} {UNTIMED}"
                if gain < 0:
                    because = f"{because} The exchange would take longer."
                return [Advice(adviser, title, because, setting, gain)]
    return []


def _options(table: PlannedTable, place: int, per_place: np.ndarray) -> Iterator[_Option]:
    name, dim, least = table.table.name, table.table.dim, int(per_place.argmin())
    moved = replace(table, ranks=np.where(table.ranks == place, least, table.ranks))
    where = f"from rank {place} to rank {least} (in the plan: constraints of the planner name no ranks)"
    yield f"Move {name} {where}", "", moved
    everyone = range(len(per_place))
    if table.pooled or len(table.ranks) == 1:
        title = f"Shard {name} by rows, over all ranks"
        yield title, constraint([glob_of(name)], ROW_WISE.name), reshard.by_rows(table, everyone, ROW_WISE)
    shards = len(per_place)
    while shards > len(table.ranks):
        lightest = np.argsort(per_place, kind="stable")[:shards]
        columns = reshard.by_columns(table, sorted(int(rank) for rank in lightest))
        if columns is not None:
            width = dim // shards
            setting = constraint([glob_of(name)], COLUMN_WISE.name, min_partition=width)
            yield f"Shard {name} by columns, {shards} x {width}, over the least loaded ranks", setting, columns
            return
        shards -= 1


def _best(
    advised: AdvisedJob, load: Load, measure: Measure, index: int, options: list[_Option]
) -> tuple[_Option, np.ndarray, float] | None:
    """The best of the options that lower the largest load, with the loads and the gain.

    That is the one with the lowest load among those that cost no time. If all cost time, it is the one that costs least.
    """
    scale = _counted_over_assumed(advised, index) if load.measured else 1.0
    found = []
    for option in options:
        changed = advised.with_tables({index: option[2]})
        after = np.maximum(load.per_rank + scale * (measure(changed) - measure(advised.forecast)), 0.0)
        if after.max() < load.per_rank.max() * (1 - 1e-9):
            found.append((option, after, advised.step_ms - advised.ms(changed)))
    free = [each for each in found if each[2] >= 0]
    if free:
        return min(free, key=lambda each: (float(each[1].max()), -each[2]))
    return max(found, key=lambda each: each[2], default=None)


def _counted_over_assumed(advised: AdvisedJob, index: int) -> float:
    assert advised.profile is not None
    entry, assumed = advised.profile.of(advised.job)[index], advised.forecast.tables[index].lookups
    if not advised.profile.samples or not assumed:
        return 1.0
    counted = float(entry.per_shard.sum()) / advised.profile.samples * advised.job.batch_size * advised.job.machines.world_size
    return counted / assumed
