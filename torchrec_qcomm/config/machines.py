"""Checks that a ``topology`` block is for the machines that a job runs on."""

from __future__ import annotations

import torch

from torchrec_qcomm.config.blocks import TopologyConfig
from torchrec_qcomm.config.fields import DEVICES
from torchrec_qcomm.errors import ConfigError, describe


def device_name(device: str | torch.device | None) -> str | None:
    """The name of a device without its index; ``None`` stays ``None``.

    Raises:
        ConfigError: TorchRec's planner does not know such a device.
    """
    name = None if device is None else str(device).partition(":")[0]
    if name not in (None, *DEVICES):
        raise ConfigError(describe("get_topology: device", "TorchRec's planner does not know it", got=name, allowed=DEVICES))
    return name


def check_machines(
    block: TopologyConfig,
    source: str,
    world_size: int | None,
    devices_per_host: int | None,
    device: str | None,
    device_here: str | None,
) -> None:
    """Refuse a block that is for other machines. What is ``None`` is not known, and not checked.

    Args:
        block: of the config.
        source: the file of the config.
        world_size: ranks in all.
        devices_per_host: ranks of a host.
        device: that was asked for.
        device_here: that TorchRec finds on this machine.

    Raises:
        ConfigError: the block says something else.
    """
    # A job can run on the CPUs of a machine with GPUs. So a block for CPUs is checked only against a device that was asked for.
    if device is None and block.device != "cpu":
        device = device_here
    shape = f"{block.hosts} hosts x {block.devices_per_host} devices"
    todo = "Start it on such machines, change the `topology` block, or leave it out to take the machines as they are."
    if world_size is not None and world_size != block.world_size:
        wrong = f"the file is for {shape}, the job has another number of ranks"
        raise ConfigError(describe(f"{source}: topology", wrong, got=world_size, allowed=[block.world_size], todo=todo))
    if devices_per_host is not None and devices_per_host != block.devices_per_host:
        wrong = f"the file is for {shape}, the job has another number of ranks per host (LOCAL_WORLD_SIZE)"
        where = f"{source}: topology.devices_per_host"
        allowed = [block.devices_per_host]
        raise ConfigError(describe(where, wrong, got=devices_per_host, allowed=allowed, todo=todo))
    if device is not None and block.device not in (None, device):
        wrong = "the file is for another device than the job"
        raise ConfigError(describe(f"{source}: topology.device", wrong, got=device, allowed=[block.device], todo=todo))
