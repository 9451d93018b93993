"""From a config to what TorchRec takes; joins the layers below, and must not do their work."""

from torchrec_qcomm.api.planner import get_constraints, get_planner, get_topology
from torchrec_qcomm.api.plans import export_plan, jobs_of, plan_offline
from torchrec_qcomm.api.sharders import get_sharders

__all__ = ["export_plan", "get_constraints", "get_planner", "get_sharders", "get_topology", "jobs_of", "plan_offline"]
