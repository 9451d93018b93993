"""From a job to a forecast of one step."""

from __future__ import annotations

import numpy as np

from torchrec_qcomm.planner.forecast.counts import Counts
from torchrec_qcomm.planner.forecast.exchange_sums import Counted, Expected, Moved, Sums
from torchrec_qcomm.planner.forecast.placement import Placement
from torchrec_qcomm.planner.forecast.rank_totals import RankTotals
from torchrec_qcomm.planner.forecast.results import ExchangeForecast, Forecast, TableForecast
from torchrec_qcomm.planner.forecast.row_sizes import RowSizes, exchanges_of
from torchrec_qcomm.planner.forecast.table_hops import TableHop, check, hops_of
from torchrec_qcomm.planner.job import REACHES, Job
from torchrec_qcomm.policy import Direction


def predict(job: Job, counts: Counts | None = None) -> Forecast:
    """Forecast one step.

    Args:
        job: the tables, the machines and the policy.
        counts: of given batches, from `count_batches`. Without them, the batch size and the pooling factors say how many ids
            there are, and these are spread evenly over the rows. Pooled bytes are exact either way, if every rank has the batch
            size of the job.

    Raises:
        PlannerError: the job makes no sense: shards on ranks that are not there, hosts that must be known and are not, ...
    """
    for planned in job.tables:
        check(planned)
    placement, row_sizes = Placement(job), RowSizes(job)
    totals = RankTotals(placement, counts)
    per_table = {id(planned): totals.add(planned) for planned in job.tables}
    totals.finish()
    wire = {id(planned): {direction: np.zeros(len(REACHES)) for direction in Direction} for planned in job.tables}
    values = {id(planned): {direction: np.zeros(len(REACHES)) for direction in Direction} for planned in job.tables}
    forward: list[ExchangeForecast] = []
    backward: list[ExchangeForecast] = []
    for (module, kind), tables in exchanges_of(job).items():
        by_number: dict[int, list[TableHop]] = {}
        for planned in tables:
            for hop in hops_of(planned, placement, counts):
                by_number.setdefault(hop.number, []).append(hop)
        for number, hops in sorted(by_number.items()):
            names = tuple(hop.planned.table.name for hop in hops)
            for direction in Direction:
                sums: Sums = Expected(hops[0].peers, hops[0].unit) if counts is None else Counted(hops[0].peers)
                for hop in hops:
                    amount = sums.add(hop, row_sizes.of(hop, direction))
                    wire[id(hop.planned)][direction] += amount.nbytes
                    values[id(hop.planned)][direction] += amount.values
                moved = sums.moved()
                if direction == Direction.FORWARD:
                    forward.append(_forward(module, kind, number, names, moved))
                else:
                    backward.append(_backward(module, kind, number, names, moved, hops[0].summed))
    return Forecast(
        job=job,
        exchanges=(*forward, *reversed(backward)),
        tables=tuple(
            TableForecast(
                planned,
                wire[id(planned)],
                values[id(planned)],
                per_table[id(planned)].lookups,
                per_table[id(planned)].id_bytes,
            )
            for planned in job.tables
        ),
        ids_sent=totals.ids_sent,
        ids_received=totals.ids_received,
        lookups=totals.lookups,
        rows=totals.rows,
        memory=totals.memory,
        dense_bytes=totals.dense_bytes,
        sync_bytes=totals.sharded_memory if len(placement.groups) > 1 else np.zeros(placement.world),
        counts=counts,
    )


def _forward(module: str, kind: str, hop: int, names: tuple[str, ...], moved: Moved) -> ExchangeForecast:
    return ExchangeForecast(
        module,
        kind,
        hop,
        Direction.FORWARD,
        moved.owners,
        moved.samples,
        moved.hosts,
        moved.owner_values,
        moved.sample_values,
        names,
    )


def _backward(module: str, kind: str, hop: int, names: tuple[str, ...], moved: Moved, summed: bool) -> ExchangeForecast:
    return ExchangeForecast(
        module,
        kind,
        hop,
        Direction.BACKWARD,
        moved.samples,
        moved.owners,
        moved.hosts.T,
        moved.gradient_values if summed else moved.sample_values,
        moved.owner_values,
        names,
    )
