"""What is predicted is what is measured: flow by flow, to the byte, on real ranks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.planner.predicting import EVERY_KIND, ODD, RANGES, WORLD, Scene, measured, odd_dims, reduced_in_steps
from tests.ranks import RankPool
from tests.sharding.scenarios.tables import LOCAL
from torchrec_qcomm.planner.forecast.counts import count_batches
from torchrec_qcomm.planner.forecast.predict import predict
from torchrec_qcomm.planner.job import Job, Machines, PlannedTable, Reach
from torchrec_qcomm.policy import Policy, Rule, Table

TWO_HOSTS = {"LOCAL_WORLD_SIZE": str(LOCAL)}


def by_reach(sent: np.ndarray) -> np.ndarray:
    """``[world, reach]`` of ``[world, world]``, on hosts of two."""
    rank = np.arange(WORLD)
    near, own = rank[:, None] // LOCAL == rank // LOCAL, rank[:, None] == rank
    far = {Reach.SELF: own, Reach.INTRA_HOST: near & ~own, Reach.INTER_POD: ~near}
    return np.stack([(sent * far.get(reach, np.zeros_like(own))).sum(axis=1) for reach in Reach], axis=1)


def check(ranks: RankPool, scene: Scene) -> None:
    answers = ranks.run(WORLD, measured, scene, env=TWO_HOSTS)
    job = scene.job()
    forecast = predict(job, count_batches([scene.batches(rank) for rank in range(WORLD)], job))
    traffic = answers[0][0]
    assert forecast.traffic() == traffic
    assert traffic.wire_bytes() > 0
    for direction in ("forward", "backward"):
        measured_matrix = traffic.matrix(WORLD, direction=direction, include_self=True)
        assert forecast.rank_matrix([direction]).tolist() == measured_matrix
        assert (forecast.sent([direction]) == by_reach(np.array(measured_matrix))).all()
        assert (forecast.received([direction]) == by_reach(np.array(measured_matrix).T)).all()
    ids = np.array([spied for _, spied in answers])
    assert (forecast.ids_sent == by_reach(ids)).all()
    assert (forecast.ids_received == by_reach(ids.T)).all()
    assert ids.sum() == sum(table.id_bytes.sum() for table in forecast.tables)


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("variable", [False, True], ids=["uneven batches", "variable batches"])
def test_bags(ranks: RankPool, kind: str, variable: bool) -> None:
    check(ranks, Scene(bags=(kind,), variable=variable))


@pytest.mark.parametrize("kind", ["table_wise", "column_wise", "row_wise"])
@pytest.mark.parametrize("variable", [False, True], ids=["uneven batches", "variable batches"])
def test_sequences(ranks: RankPool, kind: str, variable: bool) -> None:
    check(ranks, Scene(sequences=(kind,), variable=variable))


@pytest.mark.parametrize("variable", [False, True], ids=["a rank without samples", "variable batches"])
def test_a_model_of_everything(ranks: RankPool, variable: bool) -> None:
    """Two collections whose tables share their names, which the counters cannot tell apart."""
    kinds = ("row_wise", "table_wise", "column_wise")
    check(ranks, Scene(EVERY_KIND, kinds, sizes=(8, 7, 5, 2) if variable else (8, 0, 5, 1), variable=variable))


@pytest.mark.parametrize("variable", [False, True], ids=["uneven batches", "variable batches"])
def test_row_wise_summed_inside_hosts_first(ranks: RankPool, variable: bool) -> None:
    check(ranks, Scene(bags=("row_wise",), hierarchical=True, variable=variable))


@pytest.mark.parametrize("variable", [False, True], ids=["a rank without samples", "variable batches"])
def test_ranges_of_tables(ranks: RankPool, variable: bool) -> None:
    kinds = ("row_wise", "table_wise", "column_wise")
    sizes = (8, 7, 5, 2) if variable else (8, 0, 5, 1)
    check(ranks, Scene(EVERY_KIND, kinds, policy=RANGES, sizes=sizes, variable=variable))


def test_weights_of_ids(ranks: RankPool) -> None:
    check(ranks, Scene(bags=EVERY_KIND, weighted=True))


@pytest.mark.parametrize(
    "scene",
    [
        Scene(bags=("row_wise", "table_wise", "column_wise"), sequences=("row_wise", "table_wise"), group=2),
        Scene(bags=("table_row_wise",), group=2),
    ],
    ids=["one hop", "two hops"],
)
def test_2d_parallelism(ranks: RankPool, scene: Scene) -> None:
    """Groups [0, 2] and [1, 3], each over both hosts: links are those of global ranks."""
    check(ranks, scene)


def test_even_batches_of_bags_need_no_counting(ranks: RankPool) -> None:
    scene = Scene(bags=EVERY_KIND, sizes=(7,) * WORLD)
    (traffic, _), *_ = ranks.run(WORLD, measured, scene, env=TWO_HOSTS)
    assert predict(scene.job()).traffic() == traffic


@pytest.mark.parametrize("summed", [False, True], ids=["table_wise", "row_wise"])
def test_odd_dims(ranks: RankPool, summed: bool) -> None:
    """An exchange without lookups: FBGEMM's know multiples of 4 only."""
    policy, sizes = Policy("int4", "int8", rules=(Rule(tables="[bd]", forward="int2", backward="ternary"),)), (6,) * 3
    traffic = ranks.run(3, odd_dims, policy, sizes, summed)[0]
    tables = []
    for name in sorted({name for owned in (ODD[:1] if summed else ODD) for name, _ in owned}):
        shards = [(rank, dim) for rank, owned in enumerate(ODD) for other, dim in owned if other == name]
        features = ("f0", "f1") if name == "a" else ("f0",)  # two columns of one shard
        shards = shards[:1] if name == "a" else shards
        shards = [(rank, shards[0][1]) for rank in range(3)] if summed else shards
        held, dims = np.array(shards).T
        rows = np.full(len(held), 4)
        table, kind = Table(name, 10, int(dims.sum())), "row_wise" if summed else "column_wise"
        tables.append(PlannedTable(table, "m", features, (1.0,) * len(features), kind, held, rows, dims, rows))
    assert predict(Job(tuple(tables), Machines(3, 1), 6, policy)).traffic() == traffic


def test_what_is_all_reduced(ranks: RankPool) -> None:
    """Gradients of whole data-parallel tables, and with 2D parallelism the weights of a rank's shards."""
    plain = Scene(bags=("table_wise", "data_parallel"))
    forecast = predict(plain.job())
    dims = {t.table.name: t.table.rows * t.table.dim for t in plain.job().tables}
    assert forecast.dense_bytes == 4 * sum(dims[name] for name in ("t1", "t3", "t5"))
    for answer in ranks.run(WORLD, reduced_in_steps, plain, env=TWO_HOSTS):
        assert answer["gradients"] == forecast.dense_bytes
    assert not forecast.sync_bytes.any()
    flat = Scene(bags=("row_wise", "table_wise", "column_wise"), sequences=("row_wise",), group=2)
    answers = ranks.run(WORLD, reduced_in_steps, flat, env=TWO_HOSTS)
    assert [answer["weights"] for answer in answers] == predict(flat.job()).sync_bytes.tolist()
    assert all(answer["weights"] > 0 and answer["gradients"] == 0 for answer in answers)
