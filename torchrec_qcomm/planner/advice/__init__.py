"""What to do next, each with its number; must not advise what was not forecast, or say so where a number cannot be had."""

from torchrec_qcomm.planner.advice.advise import RULES, advise
from torchrec_qcomm.planner.advice.case import Case

__all__ = ["RULES", "Case", "advise"]
