"""What a plan needs of a config if there is no model, and what is assumed where the config says nothing."""

from __future__ import annotations

from torchrec_qcomm.config.blocks import TopologyConfig
from torchrec_qcomm.config.qcomm_config import QCommConfig
from torchrec_qcomm.errors import ConfigError, describe

DEVICE = "cuda"
"""What a plan is for if the ``topology`` block names no device."""


def require_blocks(config: QCommConfig) -> TopologyConfig:
    """The ``topology`` block of a config that lists its tables and machines.

    Raises:
        ConfigError: ``tables`` or ``topology`` is missing.
    """
    for name, block, todo in (
        ("tables", config.tables, "List them: `tables: [{name: t, rows: 1000, dim: 64, features: [f], pooling: [3.0]}]`."),
        ("topology", config.topology, "Name the machines: `topology: {hosts: 2, devices_per_host: 8, device: cuda}`."),
    ):
        if not block:
            wrong = "without a model, nothing is known but what this block says"
            raise ConfigError(describe(f"{config.source}: {name}", wrong, got=None, allowed=f"a `{name}` block", todo=todo))
    assert config.topology is not None
    return config.topology


def assumed(config: QCommConfig, batch_size: int) -> list[str]:
    """A sentence for each thing that the config leaves open.

    Args:
        config: with the blocks of `require_blocks`.
        batch_size: that is taken if the config gives none.
    """
    block = require_blocks(config)
    said = [] if config.batch_size else [f"batch size {batch_size} a rank, TorchRec's default"]
    said += [] if block.device else [f"devices are {DEVICE}"]
    if block.memory_gb is None:
        said.append("a device has the memory that TorchRec takes if topology.memory_gb is not given: 32 GiB of a GPU")
    return said
