"""Times by hand: round bytes over round bandwidths."""

from __future__ import annotations

import numpy as np
import pytest

from tests.planner.forecasts import by_reach, exchange, forecast, job, table
from torchrec_qcomm import codecs
from torchrec_qcomm.errors import PlannerError
from torchrec_qcomm.planner.findings.speeds import RUNGS, Speeds, measured_speeds, specs_of
from torchrec_qcomm.planner.findings.timing import move_ms, replica_sets, ring_ms, times, uncounted
from torchrec_qcomm.planner.forecast.predict import predict
from torchrec_qcomm.planner.job import Machines, Replicas
from torchrec_qcomm.policy import Direction, Policy, Rule

MB = 1e6
# 2 hosts of 2 ranks; 10 GB/s inside, 1 GB/s a rank between hosts: a host's NIC has 2 GB/s.
MACHINES = Machines(4, 2, intra_host_gb_per_s=10.0, inter_host_gb_per_s=1.0)
NONE = Speeds({})


def moved(pairs, machines=MACHINES) -> tuple[float, str]:
    return move_ms(machines, *by_reach(machines, pairs))


def matrix(**flows: float) -> list[list[float]]:
    """MB by ``_source_destination``."""
    pairs = np.zeros((4, 4))
    for flow, amount in flows.items():
        pairs[tuple(map(int, flow.strip("_").split("_")))] = amount * MB
    return pairs.tolist()


def test_inside_a_host_the_busiest_rank_decides():
    # 30 MB at 10 GB/s: 3 ms. Rank 1 sends less, and the other direction of the link does not add to it.
    assert moved(matrix(_0_1=30, _1_0=20)) == (pytest.approx(3.0), "intra_host")


def test_receiving_counts_like_sending():
    # Ranks 0 and 1 send 4 MB each, all of it to host 1: 8 MB through a NIC of 2 GB/s either way; now one host is sent all.
    assert moved(matrix(_2_3=30, _0_3=4, _1_2=4)) == (pytest.approx(4.0), "inter_host")
    pod = Machines(4, 1, pod_hosts=1, intra_host_gb_per_s=10.0, inter_host_gb_per_s=1.0)
    # 3 ranks, each a host, send 5 MB each to rank 3: its own link, 1 GB/s, takes 15 ms.
    assert moved(matrix(_0_3=5, _1_3=5, _2_3=5), pod) == (pytest.approx(15.0), "inter_host")


def test_a_nic_is_shared_by_the_ranks_of_its_host():
    # One rank alone may use all of it: 8 MB at 2 GB/s. Two that send 8 MB each share it.
    assert moved(matrix(_0_2=8)) == (pytest.approx(4.0), "inter_host")
    assert moved(matrix(_0_2=8, _1_3=8)) == (pytest.approx(8.0), "inter_host")


def test_traffic_inside_and_between_hosts_overlaps():
    assert moved(matrix(_0_1=90, _0_2=8)) == (pytest.approx(9.0), "intra_host")
    assert moved(matrix(_0_1=30, _0_2=8)) == (pytest.approx(4.0), "inter_host")


def test_a_pod_is_joined_by_the_fast_link():
    pods = Machines(4, 1, pod_hosts=2, intra_host_gb_per_s=10.0, inter_host_gb_per_s=1.0)
    assert moved(matrix(_0_1=30), pods) == (pytest.approx(3.0), "intra_host")
    assert moved(matrix(_1_2=30), pods) == (pytest.approx(30.0), "inter_host")


def test_ranks_of_unknown_hosts_are_hosts_of_their_own():
    unknown = Machines(4, None, intra_host_gb_per_s=10.0, inter_host_gb_per_s=1.0)
    assert moved(matrix(_0_1=30), unknown) == (pytest.approx(30.0), "inter_host")


def test_what_stays_at_its_rank_takes_no_time():
    assert moved(matrix(_0_0=1000)) == (0.0, "nothing")


def test_coding_is_counted_at_the_rank_with_most_to_do():
    # 4 MB from rank 0 to 1 take 0.4 ms, plain 16 MB 1.6 ms. Rank 0 encodes 4e6 values, 16 MB, at 8 GB/s: 2 ms; rank 1 decodes
    # them at 16 GB/s: 1 ms.
    plan = job([table("t")], intra_host_gb_per_s=10.0, inter_host_gb_per_s=1.0, policy=Policy("int8"))
    quantized = exchange(MACHINES, matrix(_0_1=4), encoded={"int8": [4e6, 1e6, 0, 0]}, decoded={"int8": [1e6, 4e6, 0, 0]})
    unquantized = exchange(MACHINES, matrix(_0_1=16), encoded={"none": [4e6, 1e6, 0, 0]}, decoded={"none": [1e6, 4e6, 0, 0]})
    found = times(forecast(plan, [quantized]), forecast(plan, [unquantized]), Speeds({"int8": (8.0, 16.0)}))
    (one,) = found.collectives
    assert (one.plain_ms, one.wire_ms, one.encode_ms, one.decode_ms) == pytest.approx((1.6, 0.4, 2.0, 1.0))
    assert one.quantized_ms == found.quantized_ms == pytest.approx(3.4)
    assert found.plain_ms == pytest.approx(1.6)
    assert found.slower
    assert found.codec_speeds == {"int8": (8.0, 16.0, "given")}
    # Ten times as fast, it pays.
    assert not times(forecast(plan, [quantized]), forecast(plan, [unquantized]), Speeds({"int8": (80.0, 160.0)})).slower


def test_several_codecs_of_a_rank_add_up():
    plan = job([table("t")], policy=Policy("int8"))
    mixed = exchange(MACHINES, matrix(_0_1=4), encoded={"int8": [1e6, 0, 0, 0], "int4": [1e6, 2e6, 0, 0], "none": [9e9] * 4})
    found = times(forecast(plan, [mixed]), forecast(plan, [mixed]), Speeds({"int8": (4.0, 4.0), "int4": (1.0, 1.0)}))
    # Rank 0: 4 MB at 4 GB/s and 4 MB at 1 GB/s, 5 ms; rank 1: 8 MB at 1 GB/s, 8 ms. What no codec touches takes no coding.
    assert found.collectives[0].encode_ms == pytest.approx(8.0)


def test_codecs_without_a_speed_are_named():
    plan = job([table("t")], policy=Policy("int8", "int4"))
    assert uncounted(predict(plan), Speeds({"int4": (1.0, 1.0)})) == ("int8",)
    assert uncounted(predict(plan.under(Policy())), NONE) == ()


def test_all_reduce_is_a_ring():
    # 4 ranks, 8 MB each: every rank passes on 2 x 3/4 x 8 = 12 MB. Between hosts one rank of each, 12 MB at the NIC's 2 GB/s.
    nbytes = np.full(4, 8 * MB)
    assert ring_ms(MACHINES, [range(4)], nbytes) == pytest.approx(6.0)
    one_host = Machines(4, 4, intra_host_gb_per_s=10.0)
    assert ring_ms(one_host, [range(4)], nbytes) == pytest.approx(1.2)
    assert ring_ms(MACHINES, [[0], [1], [2], [3]], nbytes) == 0.0


def test_replicas_of_one_host_share_its_nic():
    # Pairs across hosts, 0 with 2 and 1 with 3: each rank passes on 2 x 1/2 x 8 MB, two ranks a NIC of 2 GB/s: 8 ms.
    nbytes = np.full(4, 8 * MB)
    assert ring_ms(MACHINES, [[0, 2], [1, 3]], nbytes) == pytest.approx(8.0)
    assert ring_ms(MACHINES, [[0, 1], [2, 3]], nbytes) == pytest.approx(0.8)  # inside hosts


@pytest.mark.parametrize(("strided", "sets"), [(True, [[0, 1], [2, 3]]), (False, [[0, 2], [1, 3]])])
def test_who_holds_the_same_shards(strided, sets):
    assert replica_sets(job([], replicas=Replicas(2, strided))) == sets


def test_dense_and_sync_and_ids():
    plan = job(
        [table("t")], intra_host_gb_per_s=10.0, inter_host_gb_per_s=1.0, replicas=Replicas(2, strided=False, sync_interval=4)
    )
    ids = by_reach(MACHINES, matrix(_0_2=2))
    made = forecast(plan, [], dense_bytes=8 * MB, sync_bytes=np.full(4, 8 * MB), ids_sent=ids[0], ids_received=ids[1])
    found = times(made, made, NONE)
    assert found.dense_ms == pytest.approx(6.0)
    assert found.sync_ms == pytest.approx(8.0 / 4)
    assert found.ids_ms == pytest.approx(1.0)


def test_break_even_is_the_rate_at_which_both_take_the_same():
    # int8 at 64 columns: 72 bytes for 256, so 184 bytes are saved a row of 256 bytes; encoding and decoding it at 1 GB/s each
    # takes 2 x 256 ns. A quarter of the rows stays at its rank (4 ranks): coded, but nothing saved. 3/4 x 184 / 512 GB/s.
    plan = job([table("t", dim=64)], policy=Policy("int8", "int8"))
    speeds = Speeds({"int8": (1.0, 1.0)})
    (rate,) = times(predict(plan), predict(plan.under(Policy())), speeds).break_even.values()
    assert rate == pytest.approx(0.75 * 184 / 512)


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_break_even_tells_faster_from_slower(factor):
    # Every rank has the same to send, and links inside hosts and between them have one rate: the collective as a whole turns
    # from faster to slower where the table's rate says.
    tables = [table(f"t{rank}", dim=64, ranks=[rank]) for rank in range(4)]
    speeds = Speeds({"int8": (3.0, 5.0), "int4": (2.0, 4.0)})
    policy = Policy("int8", "int4")
    first = job(tables, per_host=4, policy=policy)
    rate = times(predict(first), predict(first.under(Policy())), speeds).break_even["t2"]
    there = job(tables, per_host=4, policy=policy, intra_host_gb_per_s=rate * factor)
    found = times(predict(there), predict(there.under(Policy())), speeds)
    assert found.slower == (factor > 1)


def test_break_even_only_where_there_is_one():
    tables = [table("free", dim=64), table("larger", dim=1), table("off", dim=64), table("unknown", dim=64)]
    rules = (Rule("off", forward="none", backward="none"), Rule("unknown", forward="int4"), Rule("free", forward="bf16"))
    plan = job(tables, policy=Policy("int8", "none", rules))
    found = times(predict(plan), predict(plan.under(Policy())), Speeds({"int8": (1.0, 1.0), "bf16": (float("inf"),) * 2}))
    # int8 takes 9 bytes and more for one value of 4; bf16 takes no time here; int4 has no speed.
    assert found.break_even == {"free": None, "larger": None}


def test_measured_speeds_say_where():
    found = measured_speeds(["int8", {"codec": "qsgd", "bits": 4}, "int8"], dim=16, seconds=0, values=2**12)
    assert set(found.by_codec) == {"int8", "qsgd4"}
    assert all(speed > 0 for pair in found.by_codec.values() for speed in pair)
    assert "cpu" in found.how
    assert found.device == "cpu"


def test_speeds_that_are_none_are_refused():
    with pytest.raises(PlannerError, match=r"codec speeds: int8.*above 0"):
        Speeds({"int8": (0.0, 1.0)})
    with pytest.raises(PlannerError, match="not two speeds"):
        Speeds({"int8": (1.0,)})  # type: ignore[dict-item]


def test_which_speeds_are_wanted():
    plan = job([table("t")], policy=Policy("int8", rules=(Rule(link="inter_host", backward="int2"),)))
    wanted = {str(spec) for spec in specs_of(plan)}
    assert wanted == {"int8", "int2"} | {name for rung in RUNGS for name in rung}
    assert codecs.spec("none") not in specs_of(plan)


def test_directions_are_matched_with_their_own():
    # Forward 2 MB plain, backward 6 MB plain: each collective is beside the same one of the plain forecast.
    plan = job([table("t")], intra_host_gb_per_s=10.0, inter_host_gb_per_s=1.0)
    both = [exchange(MACHINES, matrix(_0_2=2)), exchange(MACHINES, matrix(_0_2=6), Direction.BACKWARD)]
    found = times(forecast(plan, both), forecast(plan, both[::-1]), NONE)
    assert [each.plain_ms for each in found.collectives] == pytest.approx([1.0, 3.0])
