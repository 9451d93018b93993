"""YAML -> validated objects, all problems of a file in one error; must not import TorchRec or be imported by the runtime."""

from torchrec_qcomm.config.fields import DEVICES
from torchrec_qcomm.config.load import load_config
from torchrec_qcomm.config.models import (
    PrecisionConfig,
    QCommConfig,
    RuleConfig,
    ShardingConfig,
    TableConfig,
    TopologyConfig,
)

__all__ = [
    "DEVICES",
    "load_config",
    "QCommConfig",
    "PrecisionConfig",
    "RuleConfig",
    "ShardingConfig",
    "TableConfig",
    "TopologyConfig",
]
