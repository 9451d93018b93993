"""Sizes and units of the topology that TorchRec's planner gets."""

from __future__ import annotations

from torchrec.distributed.planner.constants import CROSS_NODE_BANDWIDTH, INTRA_NODE_BANDWIDTH

from torchrec_qcomm.planner import build_topology


def test_rates_are_given_in_bytes_per_millisecond():
    topology = build_topology(16, 8, "cuda", intra_host_gb_per_s=300, inter_host_gb_per_s=50, pod_hosts=2)
    assert (topology.world_size, topology.local_world_size, topology.compute_device) == (16, 8, "cuda")
    assert topology.comms_bandwidths.intra_host_bw == 300e9 / 1000
    assert topology.comms_bandwidths.inter_host_bw == 50e9 / 1000
    assert topology.intra_group_size == 16


def test_memory_is_that_of_what_tables_are_planned_on():
    assert {device.storage.hbm for device in build_topology(4, 2, "cuda", memory_gb=80).devices} == {80 * 10**9}
    on_cpu = build_topology(4, 2, "cpu", memory_gb=0.5).devices[0].storage
    assert (on_cpu.hbm, on_cpu.ddr) == (0, 5 * 10**8)


def test_what_is_left_out_is_torchrecs():
    topology = build_topology(4, 2, "cpu")
    assert topology.comms_bandwidths.intra_host_bw == INTRA_NODE_BANDWIDTH
    assert topology.comms_bandwidths.inter_host_bw == CROSS_NODE_BANDWIDTH
    assert topology.intra_group_size == 2
