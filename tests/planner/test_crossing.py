"""How far bytes go, by hand."""

from __future__ import annotations

import pytest

from tests.planner.forecasts import job, table
from torchrec_qcomm.planner.findings.crossing import BEYOND as COLUMNS
from torchrec_qcomm.planner.findings.crossing import crossing
from torchrec_qcomm.planner.forecast.predict import predict
from torchrec_qcomm.planner.job import REACHES, Reach, Replicas

SELF, HOST, POD, BEYOND, UNKNOWN = (REACHES.index(reach) for reach in Reach)


def test_half_of_a_uniform_exchange_crosses_two_hosts():
    # 16 ranks, 8 a host, a table on each: of 16 destinations 8 are on the other host; without oneself 8 of 15.
    tables = [table(f"t{rank}", ranks=[rank]) for rank in range(16)]
    found = crossing(predict(job(tables, world=16, per_host=8)))
    assert found.known
    assert found.shares(include_self=True)[BEYOND] == pytest.approx(8 / 16)
    assert found.shares(include_self=False)[BEYOND] == pytest.approx(8 / 15)


def test_a_sharding_group_goes_by_global_ranks():
    # Case 65: 8 ranks, 4 a host; groups [0, 2, 4, 6] and [1, 3, 5, 7]: of a rank's 4 destinations 2 are on the other host,
    # 2 of 3 without itself. By the ranks of the group, 0 to 3, none would be.
    tables = [table(f"t{rank}", ranks=[rank]) for rank in range(4)]
    found = crossing(predict(job(tables, world=8, per_host=4, replicas=Replicas(group_size=4))))
    assert found.shares(include_self=True)[BEYOND] == pytest.approx(2 / 4)
    assert found.shares(include_self=False)[BEYOND] == pytest.approx(2 / 3)


def test_three_classes_of_links_with_pods():
    # Case 63: 8 ranks, 2 a host, 2 hosts a pod. Of 8 destinations: oneself, 1 in the host, 2 in the pod, 4 beyond.
    tables = [table(f"t{rank}", ranks=[rank]) for rank in range(8)]
    found = crossing(predict(job(tables, world=8, per_host=2, pod_hosts=2)))
    assert found.shares(include_self=True).tolist() == pytest.approx([1 / 8, 1 / 8, 2 / 8, 4 / 8, 0])
    alone = found.shares(include_self=False)
    assert alone.tolist() == pytest.approx([0, 1 / 7, 2 / 7, 4 / 7, 0])
    assert alone.sum() == pytest.approx(1.0)
    # With pods of one host there are two.
    one = crossing(predict(job(tables, world=8, per_host=2, pod_hosts=1))).shares(include_self=False)
    assert one.tolist() == pytest.approx([0, 1 / 7, 0, 6 / 7, 0])


def test_without_the_size_of_hosts_no_share_is_told():
    found = crossing(predict(job([table("t")], per_host=None)))
    assert not found.known
    assert found.shares(include_self=True) is found.shares(include_self=False) is None
    assert found.wire[UNKNOWN] == found.wire.sum() - found.wire[SELF] > 0


def test_bytes_that_cross_hosts_by_table():
    # Case 76: three tables on host 0 of two. Each sends vectors of 8 samples to each of 4 ranks, and is sent gradients: two of
    # the ranks are on host 1, so 2 directions x 2 ranks x 8 samples x dim x 4 bytes cross.
    tables = [table("a", dim=16, ranks=[0]), table("b", dim=64, ranks=[1]), table("c", dim=32, ranks=[0])]
    found = {each.planned.table.name: sum(each.wire.values()) for each in predict(job(tables)).tables}
    assert {name: wire[list(COLUMNS)].sum() for name, wire in found.items()} == {
        name: 2 * 2 * 8 * dim * 4 for name, dim in {"a": 16, "b": 64, "c": 32}.items()
    }
    assert all(wire.sum() == 2 * wire[list(COLUMNS)].sum() for wire in found.values())  # as much stays on host 0


def test_nothing_is_no_share_of_anything():
    found = crossing(predict(job([table("t", kind="data_parallel", ranks=())])))
    assert found.wire.tolist() == [0] * len(REACHES)
    assert found.shares(include_self=False).tolist() == [0] * len(REACHES)
