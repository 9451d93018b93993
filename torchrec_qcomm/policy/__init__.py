"""Ordered rules that give each site its codec. Pure: must not know YAML, TorchRec, tensors or process groups."""

from torchrec_qcomm.policy.policy import Policy
from torchrec_qcomm.policy.resolution import Decision, ResolvedPolicy
from torchrec_qcomm.policy.rules import Rule, Where
from torchrec_qcomm.policy.sites import Direction, Link, Site, Table, What, link_between

__all__ = [
    "Policy",
    "Rule",
    "Where",
    "Table",
    "What",
    "Direction",
    "Link",
    "Site",
    "link_between",
    "Decision",
    "ResolvedPolicy",
]
