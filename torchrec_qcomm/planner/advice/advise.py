"""All advice on one job, the largest gain first."""

from __future__ import annotations

from collections.abc import Callable

from torchrec_qcomm.planner.advice import hot_rows, precision, topology, uneven_ranks, what_remains
from torchrec_qcomm.planner.advice.advised_job import AdvisedJob
from torchrec_qcomm.planner.findings.results import Advice

Adviser = Callable[[AdvisedJob], list[Advice]]

ADVISERS: tuple[Adviser, ...] = (
    precision.lower_precision_of_many,
    precision.lower_precision,
    precision.switch_off,
    hot_rows.hot_row_wise_owner,
    uneven_ranks.uneven_lookups,
    uneven_ranks.uneven_bytes,
    topology.keep_inside_host,
    topology.hierarchical_row_wise,
    topology.two_dimensions,
    what_remains.ids_dominate,
    what_remains.wide_vectors,
)


def advise(advised: AdvisedJob) -> tuple[Advice, ...]:
    """What the advisers find, the largest gain first; if none of it gains anything, that nothing is left to gain."""
    said = (advice for adviser in ADVISERS for advice in adviser(advised))
    found = sorted(said, key=lambda advice: advice.gain_ms, reverse=True)
    return (*found, *what_remains.nothing_left(advised, found))
