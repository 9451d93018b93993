"""All parts together, and what is said of what is not known."""

from __future__ import annotations

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.planner.forecasts import FAST, job, table
from torchrec_qcomm.errors import PlannerError
from torchrec_qcomm.planner.analysis import analyse
from torchrec_qcomm.planner.findings.lookups import profile_lookups
from torchrec_qcomm.planner.findings.speeds import Speeds
from torchrec_qcomm.policy import Policy

TABLES = [table("rows", rows=12, kind="row_wise", ranks=range(4), pooling=[4.0]), table("whole", ranks=[1])]
INT8 = Policy("int8", "int8")


def notes(*args, **fields) -> str:
    return "\n".join(analyse(*args, **fields).notes)


def test_everything_is_of_the_same_job():
    plan = job(TABLES, policy=INT8, assumptions=("pooling factor 4 was assumed",))
    found = analyse(plan, speeds=FAST)
    assert found.forecast.job is plan
    assert found.plain.job.policy == Policy()
    assert found.crossing.wire.sum() == found.forecast.sent().sum() < found.plain.sent().sum()
    assert [load.what for load in found.loads] == ["lookups", "bytes sent", "bytes received", "rows", "memory"]
    assert [load.max_over_mean for load in found.loads if load.what == "memory"] == [
        pytest.approx(found.forecast.memory.max() / found.forecast.memory.mean())
    ]
    assert len(found.times.collectives) == len(found.forecast.exchanges)
    assert 0 < found.times.quantized_ms < found.times.plain_ms
    assert found.times.codec_speeds == {"int8": (1e6, 1e6, "given")}
    assert "pooling factor 4 was assumed" in found.notes
    gains = [advice.gain_ms for advice in found.advice]
    assert gains == sorted(gains, reverse=True)
    assert gains


def test_a_codec_without_a_speed_is_told():
    assert "Not counted: the time to encode and decode int8; no speed of it is known" in notes(job(TABLES, policy=INT8))
    assert "Not counted" not in notes(job(TABLES, policy=INT8), speeds=FAST)
    assert "Not counted" not in notes(job(TABLES))  # there is nothing to code
    some = notes(job(TABLES, policy=Policy("int8", "int4")), speeds={"int8": (1.0, 1.0)})
    assert "Not counted: the time to encode and decode int4;" in some


def test_speeds_of_a_cpu_are_not_taken_for_a_gpu():
    measured = Speeds({"int8": (0.001, 0.001)}, "measured here on cpu (2 threads), rows of 64 values", "cpu")
    here = analyse(job(TABLES, policy=INT8, device="cpu"), speeds=measured)
    there = analyse(job(TABLES, policy=INT8, device="cuda"), speeds=measured)
    assert here.times.slower
    assert here.times.codec_speeds["int8"][2].startswith("measured here on cpu")
    assert there.times.codec_speeds == {}
    assert not there.times.slower
    text = "\n".join(there.notes)
    assert "Not counted" in text
    assert "measured here on cpu (2 threads), rows of 64 values, which says nothing about cuda" in text
    unknown = analyse(job(TABLES, policy=INT8), speeds=measured)
    assert unknown.times.slower
    assert "if that is not cpu" in "\n".join(unknown.notes)


def test_a_policy_that_slows_down_is_told():
    text = notes(job(TABLES, policy=INT8), speeds={"int8": (0.001, 0.001)})
    assert "The policy is predicted to slow the exchange down" in text
    assert "slow the exchange down" not in notes(job(TABLES, policy=INT8), speeds=FAST)


def test_unknown_hosts_and_what_is_left_out_are_told():
    assert "not known how many ranks a host has" in notes(job(TABLES, per_host=None))
    assert "not known how many ranks a host has" not in notes(job(TABLES))
    assert "latency" in notes(job(TABLES))


def test_counted_lookups_stand_beside_the_assumed_ones():
    plan = job(TABLES)
    # All 6 ids of each batch of 2 samples are row 0 or 1, which rank 0 has; 5 of whole.
    ids = torch.tensor([0, 1, 0, 0, 0, 1, 3, 3, 3, 3, 3])
    batches = [KeyedJaggedTensor(["rows_0", "whole_0"], ids, lengths=torch.tensor([4, 2, 3, 2]))] * 3
    found = analyse(plan, profile=profile_lookups(batches, plan))
    assumed, counted = (load for load in found.loads if load.what == "lookups")
    # Assumed: 32 samples x 4 ids, a quarter a rank, and 32 of whole at rank 1. Counted: 3 a sample at rank 0, 2.5 at rank 1.
    assert assumed.per_rank.tolist() == [32, 64, 32, 32]
    assert counted.per_rank.tolist() == [96, 80, 0, 0]
    assert (assumed.measured, counted.measured) == (False, True)
    assert counted.worst == (0, 1)
    assert counted.tables == (("rows", 1.0),)
    assert "Lookups were counted over 3 batches of 2 samples" in "\n".join(found.notes)
    bounded = analyse(plan, profile=profile_lookups([_many()], plan, kept_ids=1))
    assert "Counts of single ids are lower bounds" in "\n".join(bounded.notes)


def _many() -> KeyedJaggedTensor:
    """More ids than the ten that are kept at least."""
    return KeyedJaggedTensor(["rows_0", "whole_0"], torch.arange(12).repeat(2), lengths=torch.tensor([12, 12]))


def test_a_profile_of_another_plan_is_refused():
    plan = job([table("t", rows=10)])
    profile = profile_lookups([KeyedJaggedTensor(["t_0"], torch.tensor([1]), lengths=torch.tensor([1]))], plan)
    with pytest.raises(PlannerError, match="profile of lookups: table 'rows'"):
        analyse(job(TABLES), profile=profile)


def test_a_job_on_one_rank_has_nothing_to_exchange():
    found = analyse(job([table("t")], world=1, per_host=1))
    assert found.times.plain_ms == found.times.quantized_ms == 0
    assert not found.times.slower
    assert [advice.rule for advice in found.advice] == ["nothing_left"]


def test_what_eight_bits_save_of_short_vectors():
    # 8 values and a scale are 9 bytes for 32: 71.9 % are saved, and not 75 %.
    found = analyse(job([table("t", dim=8)], policy=Policy("fp8_e4m3", "fp8_e5m2")))
    assert 1 - found.crossing.wire.sum() / found.plain.sent().sum() == pytest.approx(0.71875)
