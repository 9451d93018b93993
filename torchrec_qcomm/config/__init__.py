"""YAML -> validated objects, all problems of a file in one error; must not import TorchRec or be imported by the runtime."""

from torchrec_qcomm.config.blocks import PrecisionConfig, RuleConfig, ShardingConfig, TableConfig, TopologyConfig
from torchrec_qcomm.config.fields import DEVICES
from torchrec_qcomm.config.qcomm_config import QCommConfig, load_config

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
