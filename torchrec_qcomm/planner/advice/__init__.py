"""What to do next, each with its predicted gain; must not advise what was not forecast, unless it says so."""

from torchrec_qcomm.planner.advice.advise import ADVISERS, advise
from torchrec_qcomm.planner.advice.advised_job import AdvisedJob

__all__ = ["ADVISERS", "AdvisedJob", "advise"]
