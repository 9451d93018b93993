"""How far bytes go: inside a rank, a host, a pod, or beyond."""

from __future__ import annotations

import numpy as np

from torchrec_qcomm.planner.findings.results import Crossing
from torchrec_qcomm.planner.forecast.results import Forecast
from torchrec_qcomm.planner.job import REACHES, Reach

BEYOND = tuple(REACHES.index(reach) for reach in (Reach.INTRA_POD, Reach.INTER_POD))
"""Columns of ``[..., reach]`` with the bytes that leave a host."""


def across_hosts(by_reach: np.ndarray) -> float:
    """Of ``[reach]`` numbers, the sum of those between hosts, of one pod or not."""
    return float(sum(by_reach[column] for column in BEYOND))


def crossing(forecast: Forecast) -> Crossing:
    """The bytes of the quantized exchange by reach, of all ranks, directions and hops."""
    return Crossing(wire=forecast.sent().sum(axis=0), known=forecast.job.machines.devices_per_host is not None)
