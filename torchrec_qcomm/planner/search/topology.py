"""The machines, as TorchRec's planner wants them."""

from __future__ import annotations

from torchrec.distributed.comm import get_local_size
from torchrec.distributed.planner import Topology
from torchrec.distributed.planner.constants import CROSS_NODE_BANDWIDTH, INTRA_NODE_BANDWIDTH
from torchrec.distributed.planner.types import BasicCommsBandwidths, KernelConfig, TopologyFactory, TrainerConfig
from torchrec.distributed.utils import get_device_type

from torchrec_qcomm.errors import ConfigError, describe

BYTES_PER_MS = 1e9 / 1e3
"""1 GB/s in the planner's unit. The names of its constants speak of seconds, but they hold bytes per millisecond."""

DEFAULT_RATES = (INTRA_NODE_BANDWIDTH / BYTES_PER_MS, CROSS_NODE_BANDWIDTH / BYTES_PER_MS)
"""GB/s (1e9 bytes) inside hosts and between them that TorchRec takes if nothing is said: 600 and 12.5 GiB/s."""


def build_topology(
    world_size: int,
    local_world_size: int,
    device: str,
    intra_host_gb_per_s: float | None = None,
    inter_host_gb_per_s: float | None = None,
    pod_hosts: int | None = None,
    memory_gb: float | None = None,
) -> Topology:
    """TorchRec's ``Topology``.

    Args:
        world_size: ranks in all.
        local_world_size: ranks on each host.
        device: ``cpu``, ``cuda`` or ``mtia``.
        intra_host_gb_per_s: GB/s (1e9 bytes) per device, one way; ``None``: TorchRec's default.
        inter_host_gb_per_s: likewise.
        pod_hosts: how many hosts the fast link joins; ``None``: each host is alone.
        memory_gb: memory of a device in GB (1e9 bytes), on ``cpu`` of a rank's share of its host; ``None``: TorchRec's default.
    """
    intra, inter = (
        default if rate is None else rate * BYTES_PER_MS
        for rate, default in ((intra_host_gb_per_s, INTRA_NODE_BANDWIDTH), (inter_host_gb_per_s, CROSS_NODE_BANDWIDTH))
    )
    # The factory takes plain bandwidths only if it detects the hardware too. A comms model it takes always.
    memory = "ddr_cap_bytes" if device == "cpu" else "hbm_cap_bytes"
    comms = BasicCommsBandwidths(intra_host_bw=intra, inter_host_bw=inter)
    return TopologyFactory.create_topology(
        TrainerConfig(
            world_size=world_size,
            local_world_size=local_world_size,
            pod_size=pod_hosts,
            **({} if memory_gb is None else {memory: round(memory_gb * 1e9)}),
        ),
        kernel_config=KernelConfig(compute_device=device, generalized_comms_bandwidths=comms),
    )


def topology_of_ranks(world_size: int | None, devices_per_host: int | None, device: str | None) -> Topology:
    """TorchRec's ``Topology`` of so many ranks, with TorchRec's own rates.

    Args:
        world_size: ranks in all; ``None``: not known, which is an error.
        devices_per_host: ranks on each host; ``None``: as TorchRec finds in the environment.
        device: ``cpu``, ``cuda`` or ``mtia``; ``None``: as TorchRec finds on this machine.

    Raises:
        ConfigError: the ranks are not known, or do not fill such hosts.
    """
    if world_size is None:
        todo = "Start the process group first, pass world_size, or write a `topology` block."
        raise ConfigError(describe("get_topology: world_size", "unknown", got=None, allowed="1 or more", todo=todo))
    if world_size < 1:
        raise ConfigError(describe("get_topology: world_size", "not a number of ranks", got=world_size, allowed="1 or more"))
    local = get_local_size(world_size) if devices_per_host is None else devices_per_host
    if local < 1 or world_size % local:
        wrong = f"{world_size} ranks cannot be split over hosts of this size"
        raise ConfigError(describe("get_topology: local_world_size", wrong, got=local, allowed=f"a divisor of {world_size}"))
    return build_topology(world_size, local, device or get_device_type())
