"""The sums of a forecast agree with its pairs of ranks, expected numbers with counted ones; and what is refused."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.planner.jobs import dealt, drawn, planned, whole
from tests.planner.predicting import Scene
from torchrec_qcomm import codecs
from torchrec_qcomm.codecs.formats.int4 import Int4
from torchrec_qcomm.errors import PlannerError
from torchrec_qcomm.planner.forecast import row_sizes
from torchrec_qcomm.planner.forecast.counts import Counts, FeatureCounts, blocks_of, count_batches
from torchrec_qcomm.planner.forecast.placement import Placement
from torchrec_qcomm.planner.forecast.predict import predict
from torchrec_qcomm.planner.job import REACHES, Job, Machines, Reach, Replicas
from torchrec_qcomm.policy import Direction, Policy, Rule

JOBS = range(120)


def counted(job: Job) -> Counts:
    """Counts that say what the job expects."""
    features, placement = {}, Placement(job)
    for table in job.tables:
        blocks = blocks_of(table, placement)
        share = np.array([rows for _, rows, *_ in dealt(table.table.rows, 1, range(blocks))]) / table.table.rows
        for feature, ids in zip(table.features, table.pooling, strict=True):
            each = np.tile((share * job.batch_size * ids)[:, None], placement.world)
            features[table.module, table.table.name, feature] = FeatureCounts(np.full(placement.world, job.batch_size), each)
    return Counts(features)


def test_sums_agree_with_pairs() -> None:
    kinds: set[tuple[str, int]] = set()
    for job in map(drawn, JOBS):
        forecast, world = predict(job), job.machines.world_size
        matrix, rank = forecast.rank_matrix(), np.arange(world)
        host = rank // job.machines.devices_per_host
        pod = host // job.machines.pod_hosts
        for reach, there in {
            Reach.SELF: rank[:, None] == rank,
            Reach.INTRA_HOST: (host[:, None] == host) & (rank[:, None] != rank),
            Reach.INTRA_POD: (pod[:, None] == pod) & (host[:, None] != host),
            Reach.INTER_POD: pod[:, None] != pod,
        }.items():
            column = REACHES.index(reach)
            assert forecast.sent()[:, column] == pytest.approx((matrix * there).sum(axis=1))
            assert forecast.received()[:, column] == pytest.approx((matrix * there).sum(axis=0))
            total = sum(table.wire[direction][column] for table in forecast.tables for direction in Direction)
            assert total == pytest.approx((matrix * there).sum())
        hosts = np.zeros((job.machines.hosts,) * 2)
        np.add.at(hosts, (host[:, None], host), matrix)
        assert np.allclose(forecast.hosts(), hosts)
        by_table = [forecast.table_matrix(table.table.name) for table in job.tables]
        assert np.allclose(sum(by_table), matrix)
        assert forecast.ids_sent.sum(axis=0) == pytest.approx(forecast.ids_received.sum(axis=0))
        assert forecast.lookups.sum() == pytest.approx(sum(table.lookups for table in forecast.tables))
        kinds |= {(each.sharding_type, each.hop) for each in forecast.exchanges}
    assert len(kinds) == 4 + 2 * 2 + 1  # four in one hop, two in two, and row-wise summed inside hosts: none is missing


def test_expected_numbers_agree_with_equal_counts() -> None:
    for job in map(drawn, JOBS):
        expected, exact = predict(job), predict(job, counted(job))
        for name in ("ids_sent", "ids_received", "lookups", "rows", "memory", "sync_bytes"):
            assert np.allclose(getattr(expected, name), getattr(exact, name)), name
        for a, b in zip(expected.exchanges, exact.exchanges, strict=True):
            assert (a.module, a.sharding_type, a.hop, a.direction) == (b.module, b.sharding_type, b.hop, b.direction)
            assert all(np.allclose(getattr(a, name), getattr(b, name)) for name in ("sent", "received", "hosts"))
            for name in ("encoded", "decoded"):
                one, other = getattr(a, name), getattr(b, name)
                assert one.keys() == other.keys()
                assert all(np.allclose(one[spec], other[spec]) for spec in one)
        for a, b in zip(expected.tables, exact.tables, strict=True):
            assert (a.lookups, *a.id_bytes) == pytest.approx((b.lookups, *b.id_bytes))
            for way in Direction:
                assert np.allclose(a.wire[way], b.wire[way])
                assert np.allclose(a.values[way], b.values[way])


@dataclass(frozen=True, slots=True)
class Headed(Int4):
    """Int4 with 10 bytes more for all rows of a table between two ranks."""

    @property
    def range_header_bytes(self) -> int:
        return 10


def test_what_travels_once_a_table_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each pair of ranks between which rows go, whatever the columns and features; nothing where there are none."""
    real = codecs.get
    monkeypatch.setattr(row_sizes.codecs, "get", lambda spec: Headed() if spec.name == "int4" else real(spec))
    twice = planned("t", "column_wise", [(0, 100, 4, 0), (0, 100, 12, 0), (1, 100, 8, 0)], features=("a", "b"), pooling=(1, 1))
    job = Job((twice,), Machines(3, 1), 5, Policy("int4", "none"))
    rows = [2 * (6 + 10) * 5 + 10, 2 * 8 * 5 + 10]  # two features; dims 4 and 12 at one rank take 2 + 4 and 6 + 4
    for forecast in (predict(job), predict(job, counted(job))):
        assert forecast.rank_matrix(["forward"]).tolist() == [[rows[0]] * 3, [rows[1]] * 3, [0, 0, 0]]
        assert forecast.sent(["forward"]).sum(axis=1).tolist() == [3 * rows[0], 3 * rows[1], 0]
        assert forecast.hosts(["forward"])[0, 1] == rows[0]
        assert forecast.received(["forward"]).sum(axis=1).tolist() == [sum(rows)] * 3
        assert forecast.table("t").wire["forward"].sum() == 3 * sum(rows)
    empty = {key: FeatureCounts(np.array([5, 0, 5]), np.array([[5, 0, 5]])) for key in counted(job).features}
    assert predict(job, Counts(empty)).rank_matrix(["forward"])[0].tolist() == [rows[0], 0, rows[0]]
    host = planned("h", "table_row_wise", dealt(10, 8, range(2)), rows=10)
    hops = predict(Job((host,), Machines(4, 2), 5, Policy("int4", "none"))).rank_matrix(["forward"])
    # 8 values are 8 bytes. Inside: 10 samples of a local rank, and a head; then 5 to each rank of it, and a head.
    assert hops.tolist() == [[90 + 50, 90, 50, 0], [90, 90 + 50, 0, 50], [0] * 4, [0] * 4]


def test_nothing_has_the_size_of_ranks_by_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    from bench_lib.plans import made_up_job

    job = made_up_job(4096, 150)
    tracemalloc.start()
    forecast = predict(job)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert forecast.hosts().shape == (512, 512)
    assert peak < 4096 * 4096 * 8 == 2**27
    for ask in (forecast.rank_matrix, forecast.traffic, lambda: forecast.table_matrix("t_0")):
        with pytest.raises(PlannerError, match=r"forecast: ranks: too many .*got 4096; allowed: at most 512"):
            ask()


def test_tables_are_asked_for_by_name_and_collection() -> None:
    tables = (whole("t", 0, module="a"), whole("t", 1, module="b"), whole("u", 1, module="a"))
    forecast = predict(Job(tables, Machines(2, 2), 5))
    assert forecast.table("t", "b").planned is tables[1]
    assert forecast.table("u").planned is tables[2]
    with pytest.raises(PlannerError, match=r"table 't': several collections have one; got None; allowed: a, b"):
        forecast.table("t")
    with pytest.raises(PlannerError, match=r"table 'u': no such collection with it; got 'b'; allowed: a"):
        forecast.table("u", "b")
    with pytest.raises(PlannerError, match=r"table: no such table; got 'v'; allowed: t, t, u"):
        forecast.table("v")
    # The counters go by the name alone.
    assert forecast.traffic().total(table="t", direction="forward").wire_bytes == 2 * 5 * 32


REFUSED = {
    "a shard is on a rank that is not there; got [7]": Job((whole("t", 7),), Machines(4, 2), 5),
    "no such sharding of sequences; got 'grid_shard'": Job(
        (planned("t", "grid_shard", dealt(9, 8, range(2)), pooled=False),), Machines(4, 2), 5
    ),
    "not one for each feature; got (1.0, 2.0)": Job((whole("t", 0, pooling=(1.0, 2.0)),), Machines(4, 2), 5),
    "not a rank, rows, dim and row offset for each shard": Job(
        (replace(whole("t", 0), shard_rows=np.array([1, 2])),), Machines(4, 2), 5
    ),
    "its shards are not one on each rank of a host; got [1, 2]; allowed: hosts of 2 ranks": Job(
        (planned("t", "table_row_wise", dealt(9, 8, range(1, 3))),), Machines(4, 2), 5
    ),
    "table_row_wise: it is not known how many ranks a host has": Job(
        (planned("t", "table_row_wise", dealt(9, 8, range(2))),), Machines(4, None), 5
    ),
    "hierarchical_row_wise: it is not known how many ranks a host has": Job(
        (planned("t", "row_wise", dealt(9, 8, range(4))),), Machines(4, None), 5, hierarchical_row_wise=True
    ),
    "not equally many on each host, one host after the other; got [0, 2, 4]": Job(
        (planned("t", "row_wise", dealt(9, 8, range(3))),),
        Machines(6, 3),
        5,
        hierarchical_row_wise=True,
        replicas=Replicas(3),
    ),
    "table 't': its codec depends on the link": Job(
        (whole("t", 0),), Machines(4, None), 5, Policy(rules=(Rule(link="intra_host", forward="fp16"),))
    ),
    "table 't', forward, self: codec fp32: the payload has 16 bits": Job(
        (whole("t", 0, payload=torch.float16),), Machines(4, 2), 5, Policy("fp32")
    ),
    "2D: sharding group: 4 ranks cannot be dealt out": Job((whole("t", 0),), Machines(4, 2), 5, replicas=Replicas(3)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_makes_no_sense_is_refused(message: str) -> None:
    with pytest.raises(PlannerError) as error:
        predict(REFUSED[message])
    assert message in str(error.value)


def test_pods_are_filled_with_hosts() -> None:
    with pytest.raises(PlannerError, match=r"pod_hosts: 3 hosts do not fill pods of this size; got 2"):
        Machines(6, 2, pod_hosts=2)


def test_hosts_that_are_not_known_make_no_large_matrix() -> None:
    forecast = predict(Job((whole("t", 0),), Machines(1024, None), 5))
    assert forecast.sent(["forward"])[0].tolist() == [5 * 32, 0, 0, 0, 1023 * 5 * 32]
    with pytest.raises(PlannerError, match="hosts: it is not known how many ranks a host has"):
        forecast.hosts()
    assert predict(Job((whole("t", 0),), Machines(4, None), 5)).hosts(["forward"])[0].tolist() == [160] * 4


def test_fractions_of_rows_are_no_flows() -> None:
    forecast = predict(Job((whole("t", 0, pooled=False, pooling=(0.3,)),), Machines(2, 2), 5))
    with pytest.raises(PlannerError, match=r"table 't' moves a fraction of a row .*predict\(job, counts\)"):
        forecast.traffic()


def kjt(ids: list[int], feature: str = "t", dtype: torch.dtype = torch.int64) -> KeyedJaggedTensor:
    return KeyedJaggedTensor([feature], torch.tensor(ids, dtype=dtype), lengths=torch.tensor([len(ids)]))


def test_dtypes_of_batches_are_those_that_travel() -> None:
    job = Job((planned("t", "row_wise", dealt(5, 8, range(2)), rows=5),), Machines(2, 2), 1)
    counts = count_batches([kjt([0, 2, 4], dtype=torch.int32), kjt([3], dtype=torch.int32)], job)
    assert counts.features["bags", "t", "t"].ids.tolist() == [[2, 0], [1, 1]]  # rows 0 to 2, and 3 to 4
    forecast = predict(job, counts)
    assert forecast.ids_sent.tolist() == [[2 * 4 + 8, 4 + 8, 0, 0, 0], [4 + 8, 8, 0, 0, 0]]
    assert forecast.lookups.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([kjt([1])], "batches: not one for each rank; got 1; allowed: 2"),
        ([kjt([1]), kjt([1], "u")], "table 't': no such feature; got 't'; allowed: u"),
        ([kjt([1]), kjt([5])], "feature 't' has an id without a row; got [5, 5]; allowed: 0 to 4"),
        ([kjt([1]), kjt([1], dtype=torch.int32)], "batches: values: ranks or collections have other dtypes"),
    ],
)
def test_batches_that_do_not_fit_are_refused(batches: list[KeyedJaggedTensor], message: str) -> None:
    job = Job((planned("t", "row_wise", dealt(5, 8, range(2)), rows=5),), Machines(2, 2), 1)
    with pytest.raises(PlannerError) as error:
        count_batches(batches, job)
    assert message in str(error.value)


def test_a_job_of_a_plan() -> None:
    scene = Scene(bags=("table_row_wise", "data_parallel"), sequences=("row_wise",), weighted=True)
    job = scene.job()
    first, second, *_ = job.tables
    assert (first.module, first.table.name, first.features, first.weighted, first.pooled) == (
        "bags",
        "t0",
        ("f0", "f1"),
        True,
        True,
    )
    assert (first.ranks.tolist(), first.shard_rows.tolist(), first.row_offsets.tolist()) == ([0, 1], [20, 20], [0, 20])
    assert (second.sharding_type, len(second.ranks)) == ("data_parallel", 0)
    last = job.tables[-1]
    assert (last.module, last.pooled, last.weighted, last.ranks.tolist()) == ("sequences", False, False, [0, 1, 2, 3])
    said = "pooling factor 1 (a feature has one id a sample), TorchRec's if none is given, for 10 tables"
    assert job.assumptions == (f"{said}: t0, t1, t2, t3, t4 and 5 more",)
    plan = scene.plan()
    plan["bags"]["t0"].ranks = [0]  # all that TorchRec looks at
    assert scene.job_of(plan).tables[0].ranks.tolist() == [0, 1]


def test_plans_that_do_not_fit_the_model_are_refused() -> None:
    scene = Scene(bags=("column_wise",))
    plan = scene.plan()["bags"]
    for odd, message in (
        ({"other": plan}, "plan: module 'other': the plan shards what is no such module of the model; got 'other'"),
        ({"bags": {"x": plan["t0"]}}, "the plan has a table that the module has not; got 'x'; allowed: t0, t1, t2, t3, t4, t5"),
    ):
        with pytest.raises(PlannerError) as error:
            scene.job_of(odd)
        assert message in str(error.value)
