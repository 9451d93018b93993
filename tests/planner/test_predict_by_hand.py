"""Forecasts beside numbers that were worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.planner.jobs import dealt, planned, whole
from torchrec_qcomm.planner.forecast.predict import predict
from torchrec_qcomm.planner.job import REACHES, Job, Machines, Reach, Replicas
from torchrec_qcomm.policy import Policy, Rule
from torchrec_qcomm.wire import Cell, Flow


def shares(job: Job, include_self: bool) -> dict[Reach, float]:
    """Of all bytes that ranks send, by how far they go."""
    sent = predict(job).sent().sum(axis=0)
    sent[0] *= include_self
    return {reach: float(part) for reach, part in zip(REACHES, sent / sent.sum(), strict=True) if part}


def test_half_of_an_even_all_to_all_crosses_two_hosts() -> None:
    """16 ranks, 8 a host, a table each. Of the 16 shares of a rank, 1 is its own, 7 stay inside, 8 cross: 8/16, or 8/15."""
    job = Job(tuple(whole(f"t{i}", i) for i in range(16)), Machines(16, 8), 4)
    assert shares(job, True) == {Reach.SELF: 1 / 16, Reach.INTRA_HOST: 7 / 16, Reach.INTER_POD: 1 / 2}
    assert shares(job, False) == {Reach.INTRA_HOST: pytest.approx(7 / 15), Reach.INTER_POD: pytest.approx(8 / 15)}


def test_groups_are_of_global_ranks() -> None:
    """Group [0, 2, 4, 6], 4 ranks a host: of a rank's 4 shares 1 is its own, 1 stays inside, 2 cross: 50 %, or 2/3.

    By the index in the group, 0 to 3, all would be on one host, and none would cross.
    """
    tables = tuple(whole(f"t{i}", i) for i in range(4))
    job = Job(tables, Machines(8, 4), 4, replicas=Replicas(group_size=4))
    assert job.groups() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert shares(job, True) == {Reach.SELF: 1 / 4, Reach.INTRA_HOST: 1 / 4, Reach.INTER_POD: 1 / 2}
    assert shares(job, False)[Reach.INTER_POD] == pytest.approx(2 / 3)
    assert shares(replace(job, replicas=Replicas(4, strided=False)), False) == {Reach.INTRA_HOST: 1.0}
    # Every replica has all tables of 100 x 8 weights of 4 bytes, one table a rank, and gives them to the all-reduce.
    assert predict(job).sync_bytes.tolist() == [100 * 8 * 4] * 8


def test_three_classes_with_pods() -> None:
    """8 ranks, 2 a host, 2 hosts a pod: of 8 shares 1 is a rank's own, 1 in its host, 2 in its pod, 4 in the other."""
    job = Job(tuple(whole(f"t{i}", i) for i in range(8)), Machines(8, 2, pod_hosts=2), 4)
    found = shares(job, True)
    assert found == {Reach.SELF: 1 / 8, Reach.INTRA_HOST: 1 / 8, Reach.INTRA_POD: 1 / 4, Reach.INTER_POD: 1 / 2}
    assert sum(shares(job, False).values()) == pytest.approx(1)


def test_rows_dealt_out_over_a_pod_are_not_those_of_its_hosts() -> None:
    """A host of 4 ranks, or a pod of 2 hosts of 2: 4 ranks sum, and each sends its sums to its like in the other half.

    3 samples a rank, rows of 8 FP32: first each of 8 ranks gives 4 ranks 2 x 3 rows of 32 bytes, if it owns some; then each
    of the 4 owners sends 3 rows to itself and to its like. Two tables of half the columns, a host each, would be twice that.
    """
    rows = planned("t", "table_row_wise", dealt(40, 8, range(4)), rows=40, dim=8)
    for machines in (Machines(8, 4), Machines(8, 2, pod_hosts=2)):
        forward = [each for each in predict(Job((rows,), machines, 3)).exchanges if each.direction == "forward"]
        assert [each.sent.sum() for each in forward] == [4 * 4 * 2 * 3 * 32, 4 * 2 * 3 * 32]


def test_unknown_hosts_are_not_called_near() -> None:
    job = Job(tuple(whole(f"t{i}", i) for i in range(4)), Machines(4, None), 4)
    assert shares(job, True) == {Reach.SELF: 1 / 4, Reach.UNKNOWN: 3 / 4}


def test_fp8_of_8_values_saves_less_than_three_quarters() -> None:
    """8 codes and a scale are 9 bytes in the place of 32: 1 - 9/32 = 71.9 %, not 75 %."""
    job = Job((whole("t", 0, dim=8),), Machines(2, 2), 4)
    before, after = (predict(job.under(policy)).sent().sum() for policy in (Policy(), Policy("fp8_e4m3", "fp8_e4m3")))
    assert 1 - after / before == 1 - 9 / 32 == pytest.approx(0.719, abs=5e-4)


def test_bytes_beyond_32_bits_are_exact() -> None:
    """65,536 samples x 26 tables x 1,280 values x 4 bytes = 8,724,152,320, to each rank; 2^33 is 8,589,934,592."""
    tables = tuple(whole(f"t{i}", 0, dim=1280) for i in range(26))
    forecast = predict(Job(tables, Machines(2, 2), 65536))
    nbytes = 65536 * 26 * 1280 * 4
    assert nbytes == 8_724_152_320 > 2**33
    assert forecast.rank_matrix(["forward"]).tolist() == [[nbytes, nbytes], [0, 0]]
    assert forecast.sent(["forward"])[0].sum() == 2 * nbytes
    assert forecast.traffic().wire_bytes(direction="forward") == nbytes
    assert forecast.traffic().matrix(2, direction="backward", include_self=True) == [[nbytes, 0], [nbytes, 0]]


def test_few_ids_make_few_lookups_but_not_fewer_pooled_vectors() -> None:
    """0.1 ids a sample, 2 ranks of 50: 10 lookups. A pooled vector travels for each sample, a sequence's for each id."""
    machines, options = Machines(2, 2), {"dim": 8, "pooling": (0.1,)}
    pooled = predict(Job((whole("t", 0, **options),), machines, 50))
    sequence = predict(Job((whole("t", 0, pooled=False, **options),), machines, 50))
    for forecast in (pooled, sequence):
        assert forecast.lookups.tolist() == [10.0, 0.0]
        assert forecast.table("t").lookups == 10.0
    assert pooled.sent(["forward"]).sum() == 100 * 8 * 4
    assert sequence.sent(["forward"]).sum() == 10 * 8 * 4
    # Each rank sends 5 ids of 8 bytes, and a length of 8 bytes for each sample.
    assert pooled.ids_sent.sum(axis=1).tolist() == pytest.approx([5 * 8 + 50 * 8] * 2)
    assert pooled.ids_received.sum(axis=1).tolist() == pytest.approx([2 * (5 * 8 + 50 * 8), 0])


def test_bags_of_a_sample_each_have_a_vector() -> None:
    """2 ranks of 3 samples, each of 4 bags of 5 ids: 12 vectors and 60 ids from each, weights of 4 bytes beside the ids."""
    forecast = predict(Job((whole("t", 1, pooling=(5.0,), num_poolings=(4.0,), weighted=True),), Machines(2, 2), 3))
    assert forecast.table_matrix("t", ["forward"]).tolist() == [[0, 0], [12 * 32, 12 * 32]]
    assert forecast.lookups.tolist() == [0, 120]
    assert forecast.table("t").id_bytes.tolist() == [60 * 12 + 12 * 8, 60 * 12 + 12 * 8, 0, 0, 0]


def test_what_ranks_own_and_look_up_row_by_row() -> None:
    """10 rows over 4 ranks are 3, 3, 3 and 1; of 4 x 10 ids, those shares. Everyone sends all vectors of its rows' sums."""
    table = planned("t", "row_wise", dealt(10, 8, range(4)), rows=10, value_bytes=2)
    replicated = planned("d", "data_parallel", [], rows=7, dim=3)
    forecast = predict(Job((table, replicated), Machines(4, 2), 10))
    assert forecast.rows.tolist() == [3 + 7, 3 + 7, 3 + 7, 1 + 7]
    assert forecast.memory.tolist() == [rows * 8 * 2 + 7 * 3 * 4 for rows in (3, 3, 3, 1)]
    assert forecast.lookups.tolist() == pytest.approx([12 + 10, 12 + 10, 12 + 10, 4 + 10])
    assert forecast.dense_bytes == 7 * 3 * 4
    assert forecast.rank_matrix(["forward"]).tolist() == [[10 * 8 * 4] * 4] * 4
    assert forecast.table("d").wire["forward"].sum() == forecast.table("d").id_bytes.sum() == 0


def test_table_row_wise_crosses_hosts_with_sums() -> None:
    """2 hosts of 2, the table on the second. Inside, each of its ranks sends each of them the samples of 2 ranks; across, each
    sends one rank of each host its samples: 4 x 2 x B x 32 B stay inside, and of the second hop half crosses, 2 x B x 32 B."""
    table = planned("t", "table_row_wise", dealt(10, 8, range(2, 4)), rows=10)
    forecast = predict(Job((table,), Machines(4, 2), 5))
    row = 5 * 8 * 4
    first, second = (exchange for exchange in forecast.exchanges if exchange.direction == "forward")
    assert (first.hop, first.hosts.tolist()) == (0, [[0, 0], [0, 4 * 2 * row]])
    assert (second.hop, second.hosts.tolist()) == (1, [[0, 0], [2 * row, 2 * row]])
    assert [(each.hop, str(each.direction)) for each in forecast.exchanges] == [
        (0, "forward"),
        (1, "forward"),
        (1, "backward"),
        (0, "backward"),
    ]
    assert forecast.hosts(["backward"]).tolist() == [[0, 2 * row], [0, 10 * row]]
    # A rank's lookup of all 20 samples, and then the 10 that it has summed up.
    assert [sum(each.encoded.values()).tolist() for each in (first, second)] == [[0, 0, 160, 160], [0, 0, 80, 80]]
    # Each rank of the host is sent 10 samples by both, and then everyone 5 of its own.
    assert [sum(each.decoded.values()).tolist() for each in (first, second)] == [[0, 0, 160, 160], [40] * 4]


def test_gradients_of_sums_are_encoded_once_for_each_codec() -> None:
    """Row-wise on 4 ranks: 5 samples x 8 values go to all of them alike, unless hosts are told apart: then twice."""
    table = planned("t", "row_wise", dealt(10, 8, range(4)), rows=10)
    for rules, times in (((), 1), (("intra_host",), 2)):
        policy = Policy("int8", "int8", tuple(Rule(link=link, forward="fp16", backward="fp16") for link in rules))
        job = Job((table,), Machines(4, 2), 5, policy)
        _, backward = predict(job).exchanges
        assert sum(backward.encoded.values()).tolist() == [times * 40] * 4
        assert sum(backward.decoded.values()).tolist() == [4 * 40] * 4


def test_tables_kept_on_one_host_cross_to_the_other_only() -> None:
    """3 tables on host 0 of two: each crosses with the vectors of the second host's samples: 2 ranks x 5 x 32 B."""
    tables = tuple(whole(f"t{i}", i % 2) for i in range(3))
    forecast = predict(Job(tables, Machines(4, 2), 5))
    for table in forecast.tables:
        assert table.wire["forward"].tolist() == [160, 160, 0, 320, 0]
        assert table.values["forward"].tolist() == [40, 40, 0, 80, 0]


def test_flows_are_told_table_by_table() -> None:
    traffic = predict(Job((whole("t", 1, dim=5),), Machines(2, 1), 3, Policy("int4", "int8"))).traffic()
    # 5 codes of 4 bits are 3 bytes, and a scale and a minimum of FP16 4 more; int8: 5 and 8.
    cells = {("forward", 1, 0): 3 * 7, ("forward", 1, 1): 3 * 7, ("backward", 0, 1): 3 * 13, ("backward", 1, 1): 3 * 13}
    assert dict(traffic.flows(include_self=True)) == {
        Flow("all_to_all", way, "t", a, b): Cell(15, nbytes) for (way, a, b), nbytes in cells.items()
    }


def test_shares_of_a_sequence_follow_the_rows() -> None:
    """20 ids of each rank over 10 rows, dealt out as 3, 3, 3 and 1: 6, 6, 6 and 2 vectors to each rank."""
    table = planned("t", "row_wise", dealt(10, 8, range(4)), rows=10, pooled=False, pooling=(2.0,))
    matrix = predict(Job((table,), Machines(4, 2), 10)).rank_matrix(["forward"])
    assert np.allclose(matrix, [[ids * 32] * 4 for ids in (6, 6, 6, 2)])
