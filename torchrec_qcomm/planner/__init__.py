"""What TorchRec's planner is told, and what is made of its plans; must not need a process group or read configs."""

from torchrec_qcomm.planner.job import Job, Machines, PlannedTable, Reach, Replicas
from torchrec_qcomm.planner.search.constraints import Constraint, build_constraints
from torchrec_qcomm.planner.search.estimator import WireAwareEstimator, wire_aware_enumerator
from torchrec_qcomm.planner.search.tables import ModelTable, model_tables
from torchrec_qcomm.planner.search.topology import build_topology
from torchrec_qcomm.planner.sources.offline import ListedTable, model_of, plan_offline, plan_options
from torchrec_qcomm.planner.sources.options import job_from_options, machines_of, options_of, policy_of
from torchrec_qcomm.planner.sources.plan_file import export_plan, load_plan, read_plan
from torchrec_qcomm.planner.sources.stats_csv import read_stats_csv

__all__ = [
    # told
    "Constraint",
    "ModelTable",
    "WireAwareEstimator",
    "build_constraints",
    "build_topology",
    "model_tables",
    "wire_aware_enumerator",
    # plans, from whatever source
    "Job",
    "ListedTable",
    "Machines",
    "PlannedTable",
    "Reach",
    "Replicas",
    "export_plan",
    "job_from_options",
    "load_plan",
    "machines_of",
    "model_of",
    "options_of",
    "plan_offline",
    "plan_options",
    "policy_of",
    "read_plan",
    "read_stats_csv",
]
