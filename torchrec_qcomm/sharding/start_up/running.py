"""What the running job says of itself: its ranks, the ranks of a host, the device of this machine."""

from __future__ import annotations

import os

import torch.distributed as dist
from torchrec.distributed.utils import get_device_type


def running_world_size() -> int | None:
    """Ranks in all; ``None``: no job runs here."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else None


def running_devices_per_host() -> int | None:
    """Ranks of a host; ``None``: no job runs here, or nothing says how many."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(local) if running_world_size() is not None and local.isdigit() else None


def running_device() -> str | None:
    """The device that TorchRec finds on this machine: ``cpu``, ``cuda`` or ``mtia``; ``None``: no job runs here."""
    return None if running_world_size() is None else get_device_type()


def says_ranks_of_a_host() -> bool:
    """Whether the environment has ``LOCAL_WORLD_SIZE``, by which TorchRec goes. Without it, TorchRec takes a guess."""
    return "LOCAL_WORLD_SIZE" in os.environ
