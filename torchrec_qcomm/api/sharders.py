"""From a config to the sharders that ``DistributedModelParallel`` takes."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from torch import nn
from torchrec.distributed.types import ModuleSharder

from torchrec_qcomm.config import ConfigLike, QCommConfig, as_config
from torchrec_qcomm.config.machines import check_machines
from torchrec_qcomm.policy import Policy
from torchrec_qcomm.sharding import default_sharders
from torchrec_qcomm.sharding.start_up.running import running_device, running_devices_per_host, running_world_size

logger = logging.getLogger(__name__)


def get_sharders(
    config: ConfigLike | Policy | None = None, *, agreement_timeout: timedelta = timedelta(minutes=5)
) -> list[ModuleSharder[nn.Module]]:
    """A drop-in for TorchRec's ``get_default_sharders()``: the same list, with a quantizing sharder where there is one.

    Args:
        config: a config, the path of one, or a policy. ``None``: every table moves as it is.
        agreement_timeout: how long ranks wait for each other when a collection is sharded.

    Returns:
        TorchRec's sharders in TorchRec's order, with our counterpart in the place of each that has one. Those share the policy,
        so its rules are checked over the tables of all. Logs at INFO which is whose.

    Raises:
        ConfigError: the config is wrong, or is for other machines than those of the running process group.
    """
    if config is None or isinstance(config, Policy):
        arguments: dict[str, Any] = {"policy": config}
    else:
        config = as_config(config)
        arguments = _arguments(config)
        if (block := config.topology) is not None:
            world_size, devices_per_host = running_world_size(), running_devices_per_host()
            check_machines(block, config.source, world_size, devices_per_host, device=None, device_here=running_device())
    sharders = default_sharders(**arguments, agreement_timeout=agreement_timeout)
    ours, native = (", ".join(s.module_type.__name__ for s, is_ours in sharders if is_ours is kind) for kind in (True, False))
    logger.info("exchanged by torchrec_qcomm: %s; by TorchRec itself, unquantized: %s", ours, native)
    return [sharder for sharder, _ in sharders]


def sharders_of(config: QCommConfig) -> list[ModuleSharder[nn.Module]]:
    """The sharders of a job with this config, on whatever machines it runs."""
    return [sharder for sharder, _ in default_sharders(**_arguments(config))]


def _arguments(config: QCommConfig) -> dict[str, Any]:
    """What a config says to `default_sharders`."""
    return {
        "policy": config.policy,
        "hierarchical_row_wise": config.hierarchical_row_wise,
        "devices_per_host": None if config.topology is None else config.topology.devices_per_host,
        "seed": config.seed,
    }
