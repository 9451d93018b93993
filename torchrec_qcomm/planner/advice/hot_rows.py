"""Hot ids, and the ranks that own them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from torchrec_qcomm.planner import units as u
from torchrec_qcomm.planner.advice import reshard
from torchrec_qcomm.planner.advice.advised_job import AdvisedJob
from torchrec_qcomm.planner.advice.uneven_ranks import UNTIMED
from torchrec_qcomm.planner.advice.wording import constraint, glob_of
from torchrec_qcomm.planner.findings.loads import AT_FAULT
from torchrec_qcomm.planner.findings.lookups import TableProfile
from torchrec_qcomm.planner.findings.results import Advice
from torchrec_qcomm.planner.findings.timing import exchange_key
from torchrec_qcomm.planner.forecast.results import ExchangeForecast, Forecast
from torchrec_qcomm.planner.kinds import COLUMN_WISE, DATA_PARALLEL
from torchrec_qcomm.policy import Direction


def hot_row_wise_owner(advised: AdvisedJob) -> list[Advice]:
    """Tables whose rows are dealt out, and of which a rank has hot ids. Needs a profile, since only counting finds them."""
    if advised.profile is None:
        return []
    found = []
    for index, entry in enumerate(advised.profile.of(advised.job)):
        owner = entry.owner
        if owner is None or owner[1] <= AT_FAULT:
            continue
        table = advised.job.tables[index]
        now = advised.ms(_skewed(advised, index, entry))
        options = sorted(_cures(advised, index, entry), key=lambda option: now - advised.ms(option[2]), reverse=True)
        title, setting, after, why = options[0]
        because = (
            f"Rank {owner[0]} of its sharding group gets {owner[1]:.2f} x the mean of the lookups of {table.table.name}: the "
            f"{len(entry.hottest)} hottest ids are {u.share(entry.hot_share)} of all, id {entry.hottest[0][0]} alone "
            f"{u.share(entry.hottest[0][1] / entry.lookups)}. {why} {UNTIMED}"
        )
        found.append(Advice("hot_row_wise_owner", title, because, setting, now - advised.ms(after)))
    return found


_Cure = tuple[str, str, Forecast, str]


def _cures(advised: AdvisedJob, index: int, entry: TableProfile) -> Iterator[_Cure]:
    """What can be done about a hot owner: a title, the setting, the forecast with it, and a sentence on it."""
    table, job = advised.job.tables[index], advised.job
    name, group = table.table.name, len(job.groups()[0])
    alone = entry.hottest[0][1] / entry.lookups * len(np.unique(table.ranks))
    if alone <= AT_FAULT:
        yield (
            f"Reshuffle the ids of {name}, so that hot ones have owners of their own (in the data, or by a hash)",
            "",
            advised.forecast,
            "Assumes that ids are then spread evenly.",
        )
    replica = reshard.data_parallel(table)
    nbytes = table.table.rows * table.table.dim * table.value_bytes
    yield (
        f"Replicate {name} on all ranks",
        constraint([glob_of(name)], DATA_PARALLEL.name),
        advised.with_tables({index: replica}),
        f"Every rank then holds its {u.size(nbytes)}, and gradients of that size are all-reduced.",
    )
    for shards in (group, group // 2, group // 4):
        columns = reshard.by_columns(table, range(shards)) if shards > 1 else None
        if columns is not None:
            width = table.table.dim // shards
            yield (
                f"Shard {name} by columns, which spreads hot ids over {shards} ranks",
                constraint([glob_of(name)], COLUMN_WISE.name, min_partition=width),
                advised.with_tables({index: columns}),
                f"Assumes {shards} shards of {width} columns, on the first ranks; each of them looks up all ids.",
            )
            return


def _skewed(advised: AdvisedJob, index: int, entry: TableProfile) -> Forecast:
    """The forecast, with the ids of one table where they were counted and not spread evenly over its rows.

    The vectors of a sequence move with its ids. How ids are shared among the ranks that send them stays as forecast.
    """
    table, job = advised.job.tables[index], advised.job
    alone = advised.predict(replace(job, tables=(table,)))
    counted = np.zeros(job.machines.world_size)
    even = np.zeros_like(counted)
    for group in job.groups():
        np.add.at(counted, np.asarray(group)[table.ranks], entry.per_shard / entry.per_shard.sum())
        np.add.at(even, np.asarray(group)[table.ranks], table.shard_rows / table.shard_rows.sum())
    factor = np.divide(counted, even, out=np.ones_like(counted), where=even > 0)
    of_an_id = job.index_bytes + job.weight_bytes * table.weighted
    mine = alone.ids_received.sum(axis=1, keepdims=True)
    split = np.divide(alone.ids_received, mine, out=np.zeros_like(alone.ids_received), where=mine > 0)
    more_ids = (alone.lookups * (factor - 1) * of_an_id)[:, None] * split
    exchanges = advised.forecast.exchanges
    if not table.pooled:
        extra = {exchange_key(each): each for each in alone.exchanges}
        exchanges = tuple(_more(each, extra.get(exchange_key(each)), factor) for each in exchanges)
    return replace(advised.forecast, ids_received=advised.forecast.ids_received + more_ids, exchanges=exchanges)


def _more(exchange: ExchangeForecast, alone: ExchangeForecast | None, factor: np.ndarray) -> ExchangeForecast:
    """An exchange in which one table's owners send, or receive, ``factor`` times as much."""
    if alone is None:
        return exchange
    forward, more = exchange.direction == Direction.FORWARD, factor - 1
    way, coded = ("sent", "encoded") if forward else ("received", "decoded")
    values = {spec: many + getattr(alone, coded).get(spec, 0.0) * more for spec, many in getattr(exchange, coded).items()}
    return replace(exchange, **{way: getattr(exchange, way) + getattr(alone, way) * more[:, None], coded: values})
