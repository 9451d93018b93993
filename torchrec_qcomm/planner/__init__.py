"""What TorchRec's planner is told (topology, constraints); must not need a process group or read files."""

from torchrec_qcomm.planner.constraints import Constraint, build_constraints
from torchrec_qcomm.planner.tables import ModelTable, model_tables
from torchrec_qcomm.planner.topology import build_topology

__all__ = ["Constraint", "ModelTable", "build_constraints", "build_topology", "model_tables"]
