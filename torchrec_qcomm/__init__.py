"""Quantized embedding exchange for TorchRec; must only name what is public, and import nothing before it is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchrec_qcomm import codecs
    from torchrec_qcomm.api import export_plan, get_constraints, get_planner, get_sharders, get_topology
    from torchrec_qcomm.config import QCommConfig, load_config
    from torchrec_qcomm.errors import (
        CodecError,
        ConfigError,
        DisagreementError,
        PlannerError,
        PolicyError,
        QCommError,
        ShardingError,
        WireError,
    )
    from torchrec_qcomm.planner.analysis import analyse
    from torchrec_qcomm.planner.findings.lookups import profile_lookups
    from torchrec_qcomm.policy import Policy, Rule, Table, Where
    from torchrec_qcomm.report.hook import QCommStats
    from torchrec_qcomm.report.html.page import report_html
    from torchrec_qcomm.report.json import report_json
    from torchrec_qcomm.report.text.page import report_text
    from torchrec_qcomm.sharding import (
        QCommEmbeddingBagCollectionSharder,
        QCommEmbeddingCollectionSharder,
        load_state_dict,
        measure_traffic,
        state_dict,
    )
    from torchrec_qcomm.version import __version__
    from torchrec_qcomm.wire import Traffic

__all__ = [
    # from a config
    "load_config",
    "QCommConfig",
    "get_sharders",
    "get_planner",
    "get_topology",
    "get_constraints",
    "QCommStats",
    "export_plan",
    # what a plan will cost
    "analyse",
    "profile_lookups",
    "report_text",
    "report_json",
    "report_html",
    # in Python
    "Policy",
    "Rule",
    "Where",
    "Table",
    "QCommEmbeddingBagCollectionSharder",
    "QCommEmbeddingCollectionSharder",
    "codecs",
    # what was sent
    "measure_traffic",
    "Traffic",
    # what is remembered
    "state_dict",
    "load_state_dict",
    # errors
    "QCommError",
    "CodecError",
    "PolicyError",
    "ConfigError",
    "ShardingError",
    "PlannerError",
    "WireError",
    "DisagreementError",
    "__version__",
]

# Where each name lives. TorchRec takes seconds to import, which `torchrec-qcomm --help` does not need (PEP 562).
_HOMES = {
    "torchrec_qcomm.api": ("get_sharders", "get_planner", "get_topology", "get_constraints", "export_plan"),
    "torchrec_qcomm.config": ("load_config", "QCommConfig"),
    "torchrec_qcomm.policy": ("Policy", "Rule", "Where", "Table"),
    "torchrec_qcomm.planner.analysis": ("analyse",),
    "torchrec_qcomm.planner.findings.lookups": ("profile_lookups",),
    "torchrec_qcomm.report.json": ("report_json",),
    "torchrec_qcomm.report.hook": ("QCommStats",),
    "torchrec_qcomm.report.html.page": ("report_html",),
    "torchrec_qcomm.report.text.page": ("report_text",),
    "torchrec_qcomm.sharding": (
        "QCommEmbeddingBagCollectionSharder",
        "QCommEmbeddingCollectionSharder",
        "load_state_dict",
        "measure_traffic",
        "state_dict",
    ),
    "torchrec_qcomm.wire": ("Traffic",),
    "torchrec_qcomm.version": ("__version__",),
    "torchrec_qcomm.errors": tuple(name for name in __all__ if name.endswith("Error")),
}


def __getattr__(name: str) -> Any:
    if name == "codecs":
        return importlib.import_module("torchrec_qcomm.codecs")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
