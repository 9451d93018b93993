"""The machines, as TorchRec's planner wants them."""

from __future__ import annotations

from torchrec.distributed.planner import Topology
from torchrec.distributed.planner.constants import CROSS_NODE_BANDWIDTH, INTRA_NODE_BANDWIDTH
from torchrec.distributed.planner.types import BasicCommsBandwidths, KernelConfig, TopologyFactory, TrainerConfig

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
