"""YAML -> validated objects, all problems of a file in one error; must not import TorchRec or be imported by the runtime."""

from torchrec_qcomm.config.blocks import PrecisionConfig, RuleConfig, ShardingConfig, TableConfig, TopologyConfig
from torchrec_qcomm.config.qcomm_config import ConfigLike, QCommConfig, as_config, load_config

__all__ = [
    "load_config",
    "as_config",
    "ConfigLike",
    "QCommConfig",
    "PrecisionConfig",
    "RuleConfig",
    "ShardingConfig",
    "TableConfig",
    "TopologyConfig",
]
