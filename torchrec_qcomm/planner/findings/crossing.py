"""How far bytes go: inside a rank, a host, a pod, or beyond; in all, and table by table."""

from __future__ import annotations

import numpy as np

from torchrec_qcomm.planner.findings.results import Crossing, TableCrossing
from torchrec_qcomm.planner.forecast.results import Forecast
from torchrec_qcomm.planner.job import REACHES, Reach

BEYOND = tuple(REACHES.index(reach) for reach in (Reach.INTRA_POD, Reach.INTER_POD))
"""Columns of bytes that leave a host."""


def crossing(forecast: Forecast) -> Crossing:
    """The bytes of the quantized exchange by reach, of all ranks, directions and hops."""
    return Crossing(wire=forecast.sent().sum(axis=0), known=_hosts_known(forecast))


def crossing_by_table(forecast: Forecast) -> tuple[TableCrossing, ...]:
    """The same, table by table; those with most bytes between hosts first.

    Where hosts are not known, those with most bytes between ranks.
    """
    known = _hosts_known(forecast)
    found = []
    for entry in forecast.tables:
        wire = np.sum(list(entry.wire.values()), axis=0)
        across = float(wire[list(BEYOND)].sum()) if known else None
        found.append(TableCrossing(entry.planned.table.name, entry.planned.module, wire, across))
    return tuple(sorted(found, key=lambda each: each.wire[1:].sum() if each.across is None else each.across, reverse=True))


def _hosts_known(forecast: Forecast) -> bool:
    return forecast.job.machines.devices_per_host is not None
