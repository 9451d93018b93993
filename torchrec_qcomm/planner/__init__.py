"""What TorchRec's planner is told, and what is made of its plans; must not need a process group or read configs.

kinds      TorchRec's sharding types, in one table
job        the machines, the sharded tables and the policy that a forecast is made from
units      numbers with their units, as advice and reports print them
search/    what TorchRec's planner is told before it searches: tables, constraints, topology, costs
sources/   where a job comes from: the planner's options, a list of tables, a plan file, planner statistics
forecast/  what a step of a job will send, in bytes
findings/  what a forecast means: loads, crossings, times
advice/    what to do next, each with its number
analysis   from a job to all that a report prints of it

A room imports only from those above it. Nothing is imported before it is used: a config needs `kinds`, and TorchRec takes
seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchrec_qcomm.planner.forecast.counts import count_batches
    from torchrec_qcomm.planner.forecast.predict import predict
    from torchrec_qcomm.planner.forecast.results import Forecast
    from torchrec_qcomm.planner.job import Job, Machines, PlannedTable, Reach, Replicas
    from torchrec_qcomm.planner.search.constraints import Constraint, build_constraints, check_offered
    from torchrec_qcomm.planner.search.estimator import WireAwareEstimator, wire_aware_enumerator
    from torchrec_qcomm.planner.search.tables import ModelTable, model_tables, required_tables
    from torchrec_qcomm.planner.search.topology import build_topology, topology_of_ranks
    from torchrec_qcomm.planner.sources.offline import ListedTable, job_from_tables, model_of, plan_options
    from torchrec_qcomm.planner.sources.options import PlannerInputs, job_from_options, machines_of, options_of, policy_of
    from torchrec_qcomm.planner.sources.plan_file import read_plan, read_plan_or_stats, write_plan
    from torchrec_qcomm.planner.sources.stats_csv import read_stats_csv

__all__ = [
    # told
    "Constraint",
    "ModelTable",
    "WireAwareEstimator",
    "build_constraints",
    "build_topology",
    "check_offered",
    "model_tables",
    "required_tables",
    "topology_of_ranks",
    "wire_aware_enumerator",
    # plans, from whatever source
    "Job",
    "ListedTable",
    "Machines",
    "PlannedTable",
    "PlannerInputs",
    "Reach",
    "Replicas",
    "job_from_options",
    "job_from_tables",
    "machines_of",
    "model_of",
    "options_of",
    "plan_options",
    "policy_of",
    "read_plan",
    "read_plan_or_stats",
    "read_stats_csv",
    "write_plan",
    # what a step will send
    "Forecast",
    "count_batches",
    "predict",
]

_HOMES = {
    "forecast.counts": ("count_batches",),
    "forecast.predict": ("predict",),
    "forecast.results": ("Forecast",),
    "job": ("Job", "Machines", "PlannedTable", "Reach", "Replicas"),
    "search.constraints": ("Constraint", "build_constraints", "check_offered"),
    "search.estimator": ("WireAwareEstimator", "wire_aware_enumerator"),
    "search.tables": ("ModelTable", "model_tables", "required_tables"),
    "search.topology": ("build_topology", "topology_of_ranks"),
    "sources.offline": ("ListedTable", "job_from_tables", "model_of", "plan_options"),
    "sources.options": ("PlannerInputs", "job_from_options", "machines_of", "options_of", "policy_of"),
    "sources.plan_file": ("read_plan", "read_plan_or_stats", "write_plan"),
    "sources.stats_csv": ("read_stats_csv",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
