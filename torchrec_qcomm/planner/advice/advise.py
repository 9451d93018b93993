"""All rules over one job, ranked."""

from __future__ import annotations

from collections.abc import Callable

from torchrec_qcomm.planner.advice import balance, hot, limits, precision, topology
from torchrec_qcomm.planner.advice.case import Case, Predict
from torchrec_qcomm.planner.findings.lookups import LookupProfile
from torchrec_qcomm.planner.findings.speeds import Speeds
from torchrec_qcomm.planner.findings.terms import Advice, Load, Times
from torchrec_qcomm.planner.forecast.terms import Forecast

Rule = Callable[[Case], list[Advice]]

RULES: tuple[Rule, ...] = (
    precision.lower_precision_of_many,
    precision.lower_precision,
    precision.switch_off,
    hot.hot_row_wise_owner,
    balance.uneven_lookups,
    balance.uneven_bytes,
    topology.keep_inside_host,
    topology.hierarchical_row_wise,
    topology.two_dimensions,
    limits.ids_dominate,
    limits.wide_vectors,
)


def advise(
    forecast: Forecast,
    plain: Forecast,
    times: Times,
    loads: tuple[Load, ...],
    speeds: Speeds,
    predict: Predict,
    profile: LookupProfile | None = None,
) -> tuple[Advice, ...]:
    """What the rules find, the largest gain first; where none gains anything, that."""
    case = Case(forecast, plain, times, loads, speeds, predict, profile)
    found = sorted((advice for rule in RULES for advice in rule(case)), key=lambda advice: advice.gain_ms, reverse=True)
    return (*found, *limits.nothing_left(case, found))
