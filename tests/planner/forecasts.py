"""Small jobs for tests, and forecasts that are written down by hand, from bytes between pairs of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchrec_qcomm import codecs
from torchrec_qcomm.planner.advice.advised_job import AdvisedJob
from torchrec_qcomm.planner.analysis import analyse
from torchrec_qcomm.planner.findings.lookups import LookupProfile
from torchrec_qcomm.planner.findings.results import Analysis
from torchrec_qcomm.planner.findings.speeds import Speeds
from torchrec_qcomm.planner.forecast.predict import predict
from torchrec_qcomm.planner.forecast.results import ExchangeForecast, Forecast, TableForecast
from torchrec_qcomm.planner.job import REACHES, Job, Machines, PlannedTable, Reach
from torchrec_qcomm.policy import Direction, Table

FAST: Mapping[str, tuple[float, float]] = dict.fromkeys(("fp8_e4m3", "fp8_e5m2", "int8", "int4"), (1e6, 1e6))
"""Codecs that take next to no time."""


def table(
    name: str,
    rows: int = 1000,
    dim: int = 64,
    kind: str = "table_wise",
    ranks: Sequence[int] = (0,),
    pooling: Sequence[float] = (1.0,),
    **fields: Any,
) -> PlannedTable:
    """A table sharded as TorchRec would: row-wise in blocks of ``ceil(rows / ranks)``, column-wise in equal parts."""
    many = len(ranks)
    sizes, dims, offsets = [rows] * many, [dim] * many, [0] * many
    if kind in ("row_wise", "table_row_wise"):
        block = -(-rows // many)
        offsets = [min(i * block, rows) for i in range(many)]
        sizes = [min(block, rows - offset) for offset in offsets]
    elif kind in ("column_wise", "table_column_wise"):
        dims = [dim // many] * many
    arrays = [np.asarray(values, dtype=np.int64) for values in (ranks, sizes, dims, offsets)]
    features = tuple(f"{name}_{i}" for i in range(len(pooling)))
    module = fields.pop("module", "ebc")
    return PlannedTable(Table(name, rows, dim), module, features, tuple(pooling), kind, *arrays, **fields)


def job(tables: Sequence[PlannedTable], world: int = 4, per_host: int | None = 2, batch: int = 8, **fields: Any) -> Job:
    """A job; fields of `Machines` and of `Job` by name."""
    machines = {name: fields.pop(name) for name in Machines.__dataclass_fields__ if name in fields}
    return Job(tuple(tables), Machines(world, per_host, **machines), batch, **fields)


def advised(
    job: Job, speeds: Mapping[str, tuple[float, float]] | None = None, profile: LookupProfile | None = None
) -> AdvisedJob:
    """What advisers look at."""
    found: Analysis = analyse(job, speeds=speeds, profile=profile)
    return AdvisedJob(found.forecast, found.plain, found.times, found.loads, Speeds(dict(speeds or {})), predict, profile)


def reach(machines: Machines, source: int, destination: int) -> Reach:
    """By the definition of each reach."""
    if source == destination:
        return Reach.SELF
    if machines.devices_per_host is None:
        return Reach.UNKNOWN
    here, there = source // machines.devices_per_host, destination // machines.devices_per_host
    if here == there:
        return Reach.INTRA_HOST
    return Reach.INTRA_POD if here // machines.pod_hosts == there // machines.pod_hosts else Reach.INTER_POD


def by_reach(machines: Machines, pairs: Sequence[Sequence[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Bytes ``[source][destination]`` as what each rank sends and receives, ``[world, reach]`` each."""
    sent = np.zeros((machines.world_size, len(REACHES)))
    received = np.zeros_like(sent)
    for source, row in enumerate(pairs):
        for destination, nbytes in enumerate(row):
            column = REACHES.index(reach(machines, source, destination))
            sent[source, column] += nbytes
            received[destination, column] += nbytes
    return sent, received


def exchange(
    machines: Machines,
    pairs: Sequence[Sequence[float]],
    direction: Direction = Direction.FORWARD,
    encoded: Mapping[str, Sequence[float]] | None = None,
    decoded: Mapping[str, Sequence[float]] | None = None,
    names: Sequence[str] = (),
) -> ExchangeForecast:
    """One collective; values to encode and decode by codec, one number a rank."""
    sent, received = by_reach(machines, pairs)
    coded = [
        {codecs.spec(name): np.asarray(many, dtype=float) for name, many in (values or {}).items()}
        for values in (encoded, decoded)
    ]
    hosts = np.asarray(pairs, dtype=float)
    return ExchangeForecast("ebc", "table_wise", 0, direction, sent, received, hosts, coded[0], coded[1], tuple(names))


def forecast(job: Job, exchanges: Sequence[ExchangeForecast], tables: Sequence[TableForecast] = (), **fields: Any) -> Forecast:
    """A forecast; arrays that are not given are zeros."""
    world = job.machines.world_size
    fields = {name: np.asarray(value, dtype=float) for name, value in fields.items()}
    for name in ("ids_sent", "ids_received"):
        fields.setdefault(name, np.zeros((world, len(REACHES))))
    for name in ("lookups", "rows", "memory", "sync_bytes"):
        fields.setdefault(name, np.zeros(world))
    fields["dense_bytes"] = float(fields.get("dense_bytes", 0.0))
    return Forecast(job=job, exchanges=tuple(exchanges), tables=tuple(tables), **fields)
