"""Loads by hand: who has more than the others, and which tables are at fault."""

from __future__ import annotations

import numpy as np
import pytest

from tests.planner.forecasts import job, table
from torchrec_qcomm.planner.findings.loads import loads, ranks_at_fault
from torchrec_qcomm.planner.findings.results import Load
from torchrec_qcomm.planner.forecast.predict import predict
from torchrec_qcomm.planner.job import Replicas
from torchrec_qcomm.policy import Policy

MULTI_HOT = [3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1]
"""Ids of a sample, table by table, of MLPerf's DLRM-DCNv2 (mlcommons/training, recommendation_v2/torchrec_dlrm/README.MD)."""


def loads_of(job) -> dict[str, Load]:
    return {load.what: load for load in loads(predict(job), predict)}


def test_lookups_of_dlrm_round_robin_are_uneven_where_bytes_are_not():
    # Table i is on rank i % 8. Lookups of a sample: rank 0 has tables 0, 8, 16, 24 with 3 + 1 + 1 + 1 = 6, and so on:
    # 6, 11, 5, 22, 107, 34, 20, 9, sum 214, mean 26.75; rank 4 has 107, 107 / 26.75 = 4.00; table 20 is 100 of them.
    # Vectors: ranks 0 and 1 have 4 tables, the others 3; 4 / (26 / 8) = 1.23.
    tables = [table(f"t{i}", ranks=[i % 8], dim=128, pooling=[hot]) for i, hot in enumerate(MULTI_HOT)]
    found = loads_of(job(tables, world=8, per_host=8, batch=16))
    lookups, sent = found["lookups"], found["bytes sent"]
    assert lookups.per_rank.tolist() == [16 * 8 * n for n in (6, 11, 5, 22, 107, 34, 20, 9)]
    assert lookups.max_over_mean == pytest.approx(4.0)
    assert lookups.worst == (4, 5)  # 34 is above 1.1 x 26.75 too
    assert lookups.tables[0] == ("t20", pytest.approx(100 / 107))
    assert not lookups.measured
    assert sent.max_over_mean == pytest.approx(4 / (26 / 8))
    assert sent.worst == (0, 1)
    assert dict(sent.tables) == {name: pytest.approx(1 / 4) for name in ("t0", "t8", "t16", "t24")}
    # What is received forward: all 26 vectors of 16 samples but those of one's own tables, 22 or 23 of them.
    received = found["bytes received"]
    assert received.per_rank.tolist() == [16 * 128 * 4 * (26 - own) for own in (4, 4, 3, 3, 3, 3, 3, 3)]
    assert received.worst == ()


def test_storage_can_be_even_where_traffic_is_not():
    # Case 67: half of the huge table on each of 2 ranks, and nobody looks into it; rank 0 has the small hot table besides.
    # Memory: 0.5 + 0.001 against 0.5; lookups and vectors: all from rank 0, so max / mean = 1 / (1 / 2) = 2.
    cold = table("cold", rows=1_000_000, kind="row_wise", ranks=[0, 1], pooling=[0.0], pooled=False)
    hot = table("hot", rows=1000, ranks=[0], pooling=[50.0], pooled=False)
    found = loads_of(job([cold, hot], world=2, per_host=2))
    assert found["memory"].max_over_mean < 1.01
    assert found["memory"].worst == found["rows"].worst == ()
    for what in ("lookups", "bytes sent"):
        assert found[what].max_over_mean == pytest.approx(2.0)
        assert found[what].worst == (0,)
        assert found[what].tables == (("hot", pytest.approx(1.0)),)


def test_few_ids_a_sample_make_few_lookups_and_no_fewer_pooled_bytes():
    # Case 61: a pooled vector is sent whether or not a bag has ids; 8 samples x 4 ranks x 0.1 ids, and 8 x 3 vectors off rank.
    found = loads_of(job([table("t", dim=64, ranks=[1], pooling=[0.1])]))
    assert found["lookups"].per_rank.tolist() == pytest.approx([0, 3.2, 0, 0])
    assert found["bytes sent"].per_rank.tolist() == [0, 8 * 3 * 64 * 4, 0, 0]


def test_bytes_are_those_of_the_policy():
    # int8 has 8 bytes of scale and offset a row: 72 for 64 values, 12 for 4. 3 ranks x 8 samples each.
    wide, narrow = table("wide", dim=64, ranks=[0]), table("narrow", dim=4, ranks=[1])
    found = loads_of(job([wide, narrow], policy=Policy(forward="int8")))
    assert found["bytes sent"].per_rank.tolist() == [24 * 72, 24 * 12, 0, 0]


def test_tables_of_one_rank_sum_to_its_load():
    tables = [
        table("rows", rows=103, dim=16, kind="row_wise", ranks=range(4), pooling=[3.0]),
        table("columns", dim=64, kind="column_wise", ranks=[1, 2], pooling=[5.0, 2.0]),
        table("whole", dim=32, ranks=[1], pooling=[2.0]),
        table("everywhere", dim=8, kind="data_parallel", ranks=()),
    ]
    found = loads_of(job(tables, policy=Policy("int4", "int8")))
    for load in found.values():
        assert sum(share for _, share in load.tables) == pytest.approx(1.0), load.what
    assert {name for name, _ in found["lookups"].tables} == {"rows", "columns", "whole", "everywhere"}
    assert {name for name, _ in found["bytes sent"].tables} == {"rows", "columns", "whole"}


def test_of_2d_every_group_has_its_tables():
    # Groups [0, 2] and [1, 3]; place 1 of each has the table: global ranks 2 and 3.
    found = loads_of(job([table("t", ranks=[1], pooling=[4.0])], replicas=Replicas(group_size=2)))
    assert found["lookups"].per_rank.tolist() == [0, 0, 64, 64]  # 2 ranks x 8 samples x 4 ids
    assert found["lookups"].worst == (2, 3)
    assert found["lookups"].tables == (("t", 1.0),)


def test_at_fault_is_who_has_more_than_a_tenth_above_the_mean():
    assert ranks_at_fault(np.array([10.0, 10.0, 10.0, 10.0])) == ()
    assert ranks_at_fault(np.array([10.0, 10.0, 10.0, 11.2])) == ()  # 1.087 x mean
    assert ranks_at_fault(np.array([10.0, 12.0, 10.0, 10.0])) == (1,)
    assert ranks_at_fault(np.array([0.0] * 10 + [1.0] * 3 + [2.0] * 4)) == (13, 14, 15, 16, 10)  # five, no more
    assert ranks_at_fault(np.zeros(3)) == ()
