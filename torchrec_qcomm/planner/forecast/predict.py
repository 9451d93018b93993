"""From a job to a forecast of one step."""

from __future__ import annotations

import numpy as np

from torchrec_qcomm.planner.forecast.counts import Counts
from torchrec_qcomm.planner.forecast.loads import Loads
from torchrec_qcomm.planner.forecast.parts import Part, check, parts_of
from torchrec_qcomm.planner.forecast.peers import Place
from torchrec_qcomm.planner.forecast.sites import Sites, exchanges_of
from torchrec_qcomm.planner.forecast.sums import Counted, Expected, Moved, Sums
from torchrec_qcomm.planner.forecast.terms import ExchangeForecast, Forecast, TableForecast
from torchrec_qcomm.planner.job import REACHES, Job
from torchrec_qcomm.policy import Direction


def predict(job: Job, counts: Counts | None = None) -> Forecast:
    """Forecast one step.

    Args:
        job: the tables, the machines and the policy.
        counts: of given batches; without them the batch size and the pooling factors are taken, and ids are taken to spread
            over the rows evenly. Pooled bytes are exact either way, if all ranks have the batch size of the job.

    Raises:
        PlannerError: the job makes no sense: shards on ranks that are not there, hosts that must be known and are not, ...
    """
    for planned in job.tables:
        check(planned)
    place, sites = Place(job), Sites(job)
    loads = Loads(place, counts)
    per_table = {id(planned): loads.add(planned) for planned in job.tables}
    loads.finish()
    wire = {id(planned): {direction: np.zeros(len(REACHES)) for direction in Direction} for planned in job.tables}
    values = {id(planned): {direction: np.zeros(len(REACHES)) for direction in Direction} for planned in job.tables}
    forward: list[ExchangeForecast] = []
    backward: list[ExchangeForecast] = []
    for (module, kind), tables in exchanges_of(job).items():
        by_hop: dict[int, list[Part]] = {}
        for planned in tables:
            for part in parts_of(planned, place, counts):
                by_hop.setdefault(part.hop, []).append(part)
        for hop, parts in sorted(by_hop.items()):
            names = tuple(part.planned.table.name for part in parts)
            for direction in Direction:
                sums: Sums = Expected(parts[0].peers, parts[0].unit) if counts is None else Counted(parts[0].peers)
                for part in parts:
                    amount = sums.add(part, sites.sizes(part, direction))
                    wire[id(part.planned)][direction] += amount.nbytes
                    values[id(part.planned)][direction] += amount.values
                moved = sums.moved()
                if direction == Direction.FORWARD:
                    forward.append(_forward(module, kind, hop, names, moved))
                else:
                    backward.append(_backward(module, kind, hop, names, moved, parts[0].summed))
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
        ids_sent=loads.ids_sent,
        ids_received=loads.ids_received,
        lookups=loads.lookups,
        rows=loads.rows,
        memory=loads.memory,
        dense_bytes=loads.dense_bytes,
        sync_bytes=loads.sharded_memory if len(place.groups) > 1 else np.zeros(place.world),
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
