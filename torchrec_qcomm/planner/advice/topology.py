"""Advice that keeps bytes inside hosts."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np

from torchrec_qcomm.planner import units as u
from torchrec_qcomm.planner.advice import reshard
from torchrec_qcomm.planner.advice.advised_job import AdvisedJob
from torchrec_qcomm.planner.advice.wording import constraint, shown
from torchrec_qcomm.planner.findings.crossing import BEYOND
from torchrec_qcomm.planner.findings.results import Advice
from torchrec_qcomm.planner.forecast.results import Forecast
from torchrec_qcomm.planner.job import Job, PlannedTable, Replicas
from torchrec_qcomm.planner.kinds import GRID_SHARD, ROW_WISE, TABLE_ROW_WISE

LONGEST_INTERVAL = 100
"""2D parallelism is not advised if it pays only with more steps than this from sync to sync: weights drift apart."""


def keep_inside_host(advised: AdvisedJob) -> list[Advice]:
    """Table-row-wise in place of row-wise, for pooled tables: one host has all rows of a table, and its ranks sum first."""
    job, local = advised.job, advised.job.machines.devices_per_host
    summed = _row_wise_across(advised)
    if not summed or local is None or local == 1 or job.replicas is not None:
        return []
    load = np.zeros(job.machines.hosts)
    changed = {}
    for index in sorted(summed, key=lambda each: advised.off_rank[each], reverse=True):
        host = int(load.argmin())
        load[host] += job.tables[index].table.dim * len(job.tables[index].features)
        ranks = range(host * local, (host + 1) * local)
        changed[index] = reshard.by_rows(job.tables[index], ranks, TABLE_ROW_WISE)
    after = advised.with_tables(changed)
    gain = advised.step_ms - advised.ms(after)
    if gain <= 0:
        return []
    names = [job.tables[index].table.name for index in summed]
    because = (
        f"Between hosts there are {u.size(_between(advised.forecast))} a step; with the rows of each table inside one host "
        f"{u.size(_between(after))}. Assumes tables dealt out to hosts by their width; the fullest rank then holds "
        f"{u.size(float(after.memory.max()))} of weights, now {u.size(float(advised.forecast.memory.max()))}."
    )
    title = f"Keep the rows of {shown(names)} inside one host"
    return [Advice("keep_inside_host", title, because, constraint(names, TABLE_ROW_WISE.name), gain)]


def hierarchical_row_wise(advised: AdvisedJob) -> list[Advice]:
    """Row-wise pooled tables summed inside hosts before they cross."""
    job, local = advised.job, advised.job.machines.devices_per_host
    summed = _row_wise_across(advised)
    if not summed or local is None or local == 1 or job.hierarchical_row_wise:
        return []
    if any(len({rank // local for rank in group}) in (1, len(group)) for group in job.groups()):
        return []  # one host, or one rank on each: one hop does the same
    after = advised.with_tables({index: job.tables[index] for index in summed}, hierarchical_row_wise=True)
    gain = advised.step_ms - advised.ms(after)
    if gain <= 0:
        return []
    because = (
        f"Every rank sends its own sums of {len(summed)} row-wise tables to all others: between hosts there are "
        f"{u.size(_between(advised.forecast))} a step, summed inside hosts first {u.size(_between(after))}."
    )
    title = f"Sum row-wise tables inside hosts first ({shown([job.tables[index].table.name for index in summed])})"
    return [Advice("hierarchical_row_wise", title, because, "hierarchical_row_wise: true", gain)]


def two_dimensions(advised: AdvisedJob) -> list[Advice]:
    """2D parallelism with one host as a sharding group: the exchange stays inside, weights are all-reduced across."""
    job, local = advised.job, advised.job.machines.devices_per_host
    if local is None or local == 1 or job.machines.hosts == 1 or job.replicas is not None or not _between(advised.forecast):
        return []
    inside = _inside_one_host(job, local)
    if inside is None:
        return []
    after = advised.predict(inside)
    once = advised.ms(after) - advised.ms(replace(after, sync_bytes=np.zeros_like(after.sync_bytes)))
    saved = advised.step_ms - (advised.ms(after) - once)
    if saved <= 0:
        return []
    interval = max(1, ceil(2 * once / saved))
    if interval > LONGEST_INTERVAL:
        return []
    now, then = (float(forecast.memory.max()) for forecast in (advised.forecast, after))
    because = (
        f"Without the sync a step's exchange takes {u.time(saved)} less. A sync all-reduces "
        f"{u.size(float(after.sync_bytes.max()))} of weights a rank, {u.time(once)}; with one every {_steps(interval)} that is "
        f"at most half of what is saved. Every host holds all tables: the fullest rank {u.size(then)} of weights, now "
        f"{u.size(now)}.{_planned(job, then - now)} Assumes that shards go from rank r to rank r mod {local}, and that rows "
        "are dealt out anew."
    )
    setting = (
        f"DMPCollection(..., sharding_group_size={local}, use_inter_host_allreduce=True)\n"
        f"# model.sync(include_optimizer_state=False) every {_steps(interval)}; the planner's Topology with world_size={local}"
    )
    title = f"2D parallelism with sharding groups of one host ({local} ranks)"
    return [Advice("two_dimensions", title, because, setting, saved - once / interval)]


def _planned(job: Job, more: float) -> str:
    """A sentence on the memory that the planner reckons with on the fullest rank, weights included."""
    if job.planned_memory is None:
        return ""
    return f" The planner reckons with {u.size(float(job.planned_memory.max()))} there now, and that is {u.size(more)} more."


def _inside_one_host(job: Job, local: int) -> Job | None:
    tables = []
    for table in job.tables:
        if table.kind is GRID_SHARD:
            return None  # on one host, its shards of columns could not be told apart
        tables.append(_folded(table, local))
    groups = Replicas(group_size=local, strided=False)
    return replace(job, tables=tuple(tables), replicas=groups, hierarchical_row_wise=False)


def _folded(table: PlannedTable, local: int) -> PlannedTable:
    if table.kind.rows_dealt_out:
        return reshard.by_rows(table, range(local), table.kind)
    return replace(table, ranks=table.ranks % local)


def _row_wise_across(advised: AdvisedJob) -> list[int]:
    """Indices of the row-wise pooled tables whose bytes leave a host."""
    return [
        index
        for index, entry in enumerate(advised.forecast.tables)
        if entry.planned.kind is ROW_WISE
        and entry.planned.pooled
        and sum(float(wire[list(BEYOND)].sum()) for wire in entry.wire.values()) > 0
    ]


def _steps(interval: int) -> str:
    return "step" if interval == 1 else f"{interval} steps"


def _between(forecast: Forecast) -> float:
    """Bytes between hosts in a step."""
    return sum(float(exchange.sent[:, list(BEYOND)].sum()) for exchange in forecast.exchanges)
