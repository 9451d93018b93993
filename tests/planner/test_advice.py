"""Each adviser on a plan where it applies, and on one where it does not; gains are those of forecasts of the changed job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.planner.forecasts import FAST, advised, job, table
from torchrec_qcomm.config import QCommConfig
from torchrec_qcomm.planner.advice import ADVISERS, AdvisedJob
from torchrec_qcomm.planner.advice.hot_rows import hot_row_wise_owner
from torchrec_qcomm.planner.advice.precision import lower_precision, lower_precision_of_many, switch_off
from torchrec_qcomm.planner.advice.topology import hierarchical_row_wise, keep_inside_host, two_dimensions
from torchrec_qcomm.planner.advice.uneven_ranks import uneven_bytes, uneven_lookups
from torchrec_qcomm.planner.advice.what_remains import ids_dominate, nothing_left, wide_vectors
from torchrec_qcomm.planner.findings.lookups import LookupProfile, profile_lookups
from torchrec_qcomm.planner.findings.results import Advice
from torchrec_qcomm.planner.job import Job, PlannedTable, Replicas
from torchrec_qcomm.policy import Policy, Rule

SLOW = dict.fromkeys(FAST, (0.01, 0.01))


def even(**fields) -> Job:
    """A table of 64 columns on each of 4 ranks."""
    return job([table(f"t{rank}", ranks=[rank]) for rank in range(4)], **fields)


def the(advice: Sequence[Advice]) -> Advice:
    assert len(advice) == 1, advice
    return advice[0]


def reads_back(setting: str, plan: Job) -> QCommConfig:
    """The lines as a config, with the tables of the job."""
    tables = [
        {"name": name, "rows": 9, "dim": 8, "features": [f"{name}_{index}" for index in range(len(entry.features))]}
        for entry in plan.tables
        for name in [entry.table.name]
    ]
    return QCommConfig.from_dict({**yaml.safe_load(setting), "tables": tables})


def gain_of(plan: Job, changed: Job, speeds=None) -> float:
    """What a change gains, by forecasts of the two whole jobs."""
    return advised(plan, speeds).step_ms - advised(changed, speeds).step_ms


# Precision


def test_lower_precision_for_what_sends_most():
    plan = job([table("big", dim=512, ranks=[0]), table("small", dim=8, ranks=[0])])
    first, second = lower_precision(advised(plan, FAST))
    assert "big" in first.title
    policy = reads_back(first.setting, plan).policy
    assert policy == Policy(rules=(Rule("big", forward="fp8_e4m3", backward="fp8_e5m2"),))
    assert first.gain_ms == pytest.approx(gain_of(plan, plan.under(policy), FAST))
    assert first.gain_ms > second.gain_ms
    assert "98.5 % of the 99.8 kB that leave ranks" in first.because  # 512 of 520 columns


def test_the_next_rung_below_eight_bits_is_four():
    # fp8 takes 65 bytes for 64 values and int8 72, which is a rung above 4 bits too; of 8 values 9 and 16.
    for policy, dim, rung in (
        (Policy("bf16", "bf16"), 64, "fp8_e4m3"),
        (Policy("int8", "int8"), 64, "int4"),
        (Policy("fp8_e4m3", "fp8_e5m2"), 64, "int4"),
        (Policy("int8", "int8"), 8, "fp8_e4m3"),
    ):
        advice = the(lower_precision(advised(job([table("t", dim=dim)], policy=policy), {**FAST, "bf16": (1e6, 1e6)})))
        assert f"forward: {rung}" in advice.setting


def test_lower_precision_goes_before_rules_that_are_there():
    plan = job([table("t")], policy=Policy(rules=(Rule("t*", forward="bf16", backward="bf16"),)))
    speeds = {**FAST, "bf16": (1e6, 1e6)}
    advice = the(lower_precision(advised(plan, speeds)))
    rules = reads_back(advice.setting, plan).policy.rules
    assert advice.gain_ms == pytest.approx(gain_of(plan, plan.under(Policy(rules=(*rules, *plan.policy.rules))), speeds))


def test_no_lower_precision_where_there_is_none_or_it_costs_more():
    assert lower_precision(advised(job([table("t")], policy=Policy("int4", "int4")), FAST)) == []
    assert lower_precision(advised(job([table("t")]), SLOW)) == []
    # The table on the other host sends as much: nothing is gained by one of them alone.
    assert lower_precision(advised(job([table("a", ranks=[0]), table("b", ranks=[2])]), FAST)) == []
    assert lower_precision(advised(job([table("t", kind="data_parallel", ranks=())]), FAST)) == []


def test_codecs_of_unknown_speed_are_not_set_against_known_ones():
    assert "not counted" in the(lower_precision(advised(job([table("t")])))).because
    plan = job([table("t")], policy=Policy("int8", "int8"))
    assert lower_precision(advised(plan, {"int8": (50.0, 50.0)})) == []


def test_names_with_the_signs_of_globs_are_names():
    plan = job([table("a[0]*", dim=64), table("a00", dim=64), table('b "\\', dim=64)])
    for advice, name in zip(lower_precision(advised(plan, FAST)), ["a[0]*", "a00", 'b "\\'], strict=True):
        policy = reads_back(advice.setting, plan).policy
        resolved = policy.resolve(entry.table for entry in plan.tables)
        assert [entry.name for entry in resolved.tables if resolved.quantizes(entry.name)] == [name]


def test_all_tables_at_once():
    plan = even()
    advice = the(lower_precision_of_many(advised(plan, FAST)))
    policy = reads_back(advice.setting, plan).policy
    assert advice.gain_ms == pytest.approx(gain_of(plan, plan.under(policy), FAST))
    assert all(policy.resolve([entry.table]).quantizes(entry.table.name) for entry in plan.tables)
    assert lower_precision(advised(plan, FAST)) == []  # and by one of them alone nothing is gained


def test_those_that_have_the_same_rung():
    rules = (Rule("t1", forward="fp8_e4m3", backward="fp8_e5m2"), Rule("t2", forward="int4", backward="int4"))
    plan = even(policy=Policy(rules=rules), per_host=4)
    advice = the(lower_precision_of_many(advised(plan, FAST)))
    assert reads_back(advice.setting, plan).policy.rules[0].globs == ("t0", "t3")
    assert lower_precision_of_many(advised(job([table("t")]), FAST)) == []  # one table alone
    assert lower_precision_of_many(advised(even(policy=Policy("int4", "int4")), FAST)) == []
    assert lower_precision_of_many(advised(even(), SLOW)) == []


def test_codecs_that_cost_more_than_they_save_are_switched_off():
    rules = (Rule("t1", forward="int4", backward="int4"),)
    plan = even(policy=Policy("int8", "int8", rules))
    speeds = {"int8": (0.5, 0.5), "int4": (1e6, 1e6)}
    advice = the(switch_off(advised(plan, speeds)))
    policy = reads_back(advice.setting, plan).policy
    resolved = policy.resolve(entry.table for entry in plan.tables)
    assert policy.rules[0].globs == ("t0", "t2", "t3")  # t1 pays
    assert not any(resolved.quantizes(entry.table.name) for entry in plan.tables)
    changed = plan.under(replace(plan.policy, rules=(*policy.rules, *plan.policy.rules)))
    assert advice.gain_ms == pytest.approx(gain_of(plan, changed, speeds))
    assert advice.gain_ms > 0
    assert "pays on links below" in advice.because


def test_all_codecs_are_switched_off_by_one_glob():
    plan = even(policy=Policy("int8", "int8"))
    assert reads_back(the(switch_off(advised(plan, SLOW))).setting, plan).policy.rules[0].globs == ("*",)


def test_codecs_that_pay_stay():
    plan = even(policy=Policy("int8", "int8"))
    assert switch_off(advised(plan, FAST)) == []
    assert switch_off(advised(plan)) == []  # of what coding costs nothing is known
    assert switch_off(advised(even(), SLOW)) == []


# Balance


def profile(plan: Job, ids: list[int]) -> LookupProfile:
    """One sample a rank of the job's batch, with these ids for the one feature of the one table."""
    name = plan.tables[0].features[0]
    return profile_lookups([KeyedJaggedTensor([name], torch.tensor(ids), lengths=torch.tensor([len(ids)]))], plan)


def rows(pooled: bool = True, **fields) -> Job:
    """16 rows on 4 ranks."""
    kind = {"kind": "row_wise", "ranks": range(4), "pooling": [8.0], "pooled": pooled}
    return job([table("t", rows=16, dim=64, **kind)], **fields)


def test_the_owner_of_one_hot_id_is_relieved_by_copies():
    plan = rows(pooled=False, batch=512)
    hot = profile(plan, [0, 0, 0, 0, 0, 0, 5, 12])  # 6 of 8 at rank 0: 3 x the mean
    advice = the(hot_row_wise_owner(advised(plan, FAST, hot)))
    assert "Rank 0 of its sharding group gets 3.00 x the mean" in advice.because
    assert "id 0 alone 75.0 %" in advice.because
    assert reads_back(advice.setting, plan).sharding[0].sharding_types == ("data_parallel",)  # 4 kB: cheap to copy
    # Against what is sent as counted: rank 0 sends three times its vectors.
    assert (
        advice.gain_ms > gain_of(plan, replace(plan, tables=(table("t", rows=16, kind="data_parallel", ranks=()),)), FAST) > 0
    )


def test_several_hot_ids_of_one_owner_can_be_reshuffled():
    plan = rows(pooled=False, batch=512)
    # Rank 0 has rows 0 to 3, all hot, none of them more than a rank's share; copies of a table of 16 rows cost less still, so
    # that the table is made large.
    large = replace(plan, tables=(table("t", rows=16_000_000, kind="row_wise", ranks=range(4), pooling=[8.0], pooled=False),))
    hot = profile(large, [0, 1, 2, 3, 5_000_000, 0, 2, 9_000_000, 1, 3, 13_000_000, 4])
    advice = the(hot_row_wise_owner(advised(large, FAST, hot)))
    assert advice.title.startswith("Reshuffle the ids of t")
    assert advice.setting == ""
    assert advice.gain_ms > 0


def test_one_hot_id_cannot_be_reshuffled_away():
    large = job([table("t", rows=16_000_000, kind="row_wise", ranks=range(4), pooling=[8.0], pooled=False)], batch=512)
    advice = the(hot_row_wise_owner(advised(large, FAST, profile(large, [0, 0, 0, 0, 0, 0, 5_000_000, 12_000_000]))))
    assert "by columns" in advice.title
    assert reads_back(advice.setting, large).sharding[0].sharding_types == ("column_wise",)


def test_even_owners_and_no_profile_say_nothing():
    plan = rows()
    assert hot_row_wise_owner(advised(plan, FAST)) == []
    assert hot_row_wise_owner(advised(plan, FAST, profile(plan, [0, 5, 9, 13]))) == []
    whole = job([table("t", rows=16)])
    assert hot_row_wise_owner(advised(whole, FAST, profile(whole, [0, 0, 0, 0]))) == []


def test_a_rank_with_most_lookups_gives_a_table_away():
    # Rank 0 has two tables of 4 ids a sample, the others one of 1: one of the two goes to a rank with little.
    tables = [
        table(f"t{index}", ranks=[rank], pooling=[ids])
        for index, (rank, ids) in enumerate([(0, 4), (0, 4), (1, 1), (2, 1), (3, 1)])
    ]
    advice = the(uneven_lookups(advised(job(tables))))
    # 32 x (8, 1, 1, 1): 8 / 2.75; by rows over all ranks (5, 2, 2, 2), moved (4, 5, 1, 1).
    assert "Rank 0 has 2.91 x the mean of lookups (256 ids a step), 50.0 % of it from t0" in advice.because
    assert "it would then be 1.82 x" in advice.because
    assert "not estimated" in advice.because


def test_a_table_that_is_too_hot_for_any_rank_is_split_by_rows():
    tables = [table("hot", ranks=[0], pooling=[100.0]), *(table(f"t{rank}", ranks=[rank]) for rank in (1, 2, 3))]
    advice = the(uneven_lookups(advised(job(tables, batch=512))))
    assert advice.title == "Shard hot by rows, over all ranks"
    assert reads_back(advice.setting, job(tables)).sharding[0].sharding_types == ("row_wise",)
    # (100, 1, 1, 1) becomes (25, 26, 26, 26): 26 / 25.75.
    assert "it would then be 1.01 x" in advice.because


def test_counted_lookups_decide_where_there_are_some():
    plan = job([table("a", rows=9, ranks=[0]), table("b", rows=9, ranks=[1])], world=2)
    ids = KeyedJaggedTensor(["a_0", "b_0"], torch.tensor([1, 1, 1, 1, 1, 1, 1, 2]), lengths=torch.tensor([7, 1]))
    assert uneven_lookups(advised(plan)) == []
    advice = the(uneven_lookups(advised(plan, None, profile_lookups([ids], plan))))
    assert "Rank 0 has 1.75 x the mean of lookups (112 ids a step), 100.0 % of it from a" in advice.because


def test_a_rank_that_sends_most_is_relieved():
    tables = [table("wide", dim=256, ranks=[0]), *(table(f"t{rank}", dim=16, ranks=[rank]) for rank in (1, 2, 3))]
    plan = job(tables)
    advice = the(uneven_bytes(advised(plan)))
    assert "100.0 % of it from wide" in advice.because
    (constraint,) = reads_back(advice.setting, plan).sharding
    assert (constraint.sharding_types, constraint.min_partition) == (("column_wise",), 64)
    columns = table("wide", dim=256, kind="column_wise", ranks=range(4))
    assert advice.gain_ms == pytest.approx(gain_of(plan, replace(plan, tables=(columns, *tables[1:]))))


def test_bytes_are_not_evened_where_it_takes_longer():
    # Hosts send 40 and 36 columns at the same time. With the 40 dealt out to ranks 1 and 3 no rank has more than 36, but there
    # is a collective more: 20 columns from each host, and then the 36. By rows, or moved, some rank has as much or more.
    start = advised(job([table("t", dim=40, ranks=[0]), table("u", dim=36, ranks=[2])]))
    assert next(load for load in start.loads if load.what == "bytes sent").worst == (0, 2)
    assert uneven_bytes(start) == []
    columns = table("t", dim=40, kind="column_wise", ranks=[1, 3])
    assert start.ms(start.with_tables({0: columns})) > start.step_ms


def test_even_loads_say_nothing():
    assert uneven_lookups(advised(even())) == []
    assert uneven_bytes(advised(even())) == []


# Topology


def row_wise(**fields) -> Job:
    """Two row-wise tables on 2 hosts of 4 ranks."""
    return job([table(name, kind="row_wise", ranks=range(8)) for name in "ab"], world=8, per_host=4, **fields)


def test_rows_of_a_table_inside_one_host():
    plan = row_wise()
    advice = the(keep_inside_host(advised(plan)))
    assert reads_back(advice.setting, plan).sharding[0].sharding_types == ("table_row_wise",)
    hosts = [table(name, kind="table_row_wise", ranks=range(first, first + 4)) for name, first in (("a", 0), ("b", 4))]
    assert advice.gain_ms == pytest.approx(gain_of(plan, replace(plan, tables=tuple(hosts))))
    assert advice.gain_ms > 0


def test_row_wise_sums_inside_hosts_first():
    plan = row_wise()
    advice = the(hierarchical_row_wise(advised(plan)))
    assert reads_back(advice.setting, plan).hierarchical_row_wise
    assert advice.gain_ms == pytest.approx(gain_of(plan, replace(plan, hierarchical_row_wise=True)))
    assert advice.gain_ms > 0
    # Between hosts every rank sends 8 samples x 4 ranks x 64 x 4 bytes of both tables, both ways; then 1 / 4 of it.
    assert "262 kB a step, summed inside hosts first 65.5 kB" in advice.because


def test_2d_keeps_the_exchange_inside_hosts():
    # Few weights and a large batch: 16 kB a table.
    tables = [table(f"t{rank}", rows=64, ranks=[rank]) for rank in range(8)]
    plan = job(tables, world=8, per_host=4, batch=1024)
    advice = the(two_dimensions(advised(plan)))
    assert "sharding_group_size=4, use_inter_host_allreduce=True" in advice.setting
    assert "model.sync(include_optimizer_state=False) every step" in advice.setting
    folded = tuple(replace(entry, ranks=entry.ranks % 4) for entry in tables)
    changed = replace(plan, tables=folded, replicas=Replicas(4, strided=False))
    assert advice.gain_ms == pytest.approx(gain_of(plan, changed))
    assert advice.gain_ms > 0
    # Two tables a rank, 2 x 64 x 64 x 4 bytes, where there was one.
    assert "32.8 kB of weights, now 16.4 kB. Assumes" in advice.because
    # More than the weights lies there, and nothing tells whether it fits.
    said = the(two_dimensions(advised(replace(plan, planned_memory=np.full(8, 50_000.0))))).because
    assert "The planner reckons with 50.0 kB there now, and that is 16.4 kB more." in said


def test_2d_is_not_advised_where_syncs_cost_more():
    heavy = job([table(f"t{rank}", rows=10**9, ranks=[rank]) for rank in range(8)], world=8, per_host=4)
    assert two_dimensions(advised(heavy)) == []


def test_2d_syncs_as_rarely_as_pays():
    middle = job([table(f"t{rank}", rows=20_000, ranks=[rank]) for rank in range(8)], world=8, per_host=4, batch=1024)
    advice = the(two_dimensions(advised(middle)))
    steps = int(advice.setting.split("every ")[1].split()[0])
    assert 1 < steps <= 100
    tables = tuple(replace(entry, ranks=entry.ranks % 4) for entry in middle.tables)
    changed = replace(middle, tables=tables, replicas=Replicas(4, strided=False, sync_interval=steps))
    assert advice.gain_ms == pytest.approx(gain_of(middle, changed))
    assert advice.gain_ms > 0


@pytest.mark.parametrize("adviser", [keep_inside_host, hierarchical_row_wise, two_dimensions])
@pytest.mark.parametrize("fields", [{"per_host": 8}, {"per_host": 1}, {"per_host": None}], ids=str)
def test_one_host_or_hosts_of_one_rank_say_nothing(adviser: Callable[[AdvisedJob], list[Advice]], fields: dict):
    plan = job([table("t", rows=64, kind="row_wise", ranks=range(8))], world=8, batch=1024, **fields)
    assert adviser(advised(plan)) == []


def test_what_is_done_already_is_not_advised():
    assert hierarchical_row_wise(advised(row_wise(hierarchical_row_wise=True))) == []
    inside = job([table("t", rows=64, ranks=[1])], world=8, per_host=4, replicas=Replicas(4, strided=False))
    assert two_dimensions(advised(inside)) == []
    assert keep_inside_host(advised(job([table("t", kind="table_row_wise", ranks=range(4))], world=8, per_host=4))) == []


# Limits


def test_ids_that_take_longer_than_vectors():
    plan = job([table("t", dim=4, ranks=[0], pooling=[100.0])], batch=1024)
    advice = the(ids_dominate(advised(plan)))
    assert "int32" in advice.setting
    assert advice.gain_ms == pytest.approx(gain_of(plan, replace(plan, index_bytes=4)))
    assert advice.gain_ms > 0
    small = the(ids_dominate(advised(replace(plan, index_bytes=4))))
    assert (small.gain_ms, small.setting) == (0.0, "")
    assert ids_dominate(advised(even())) == []


def test_wide_vectors():
    tables = [table("wide", dim=1024, ranks=[0]), *(table(f"t{rank}", dim=64, ranks=[rank]) for rank in (1, 2, 3))]
    plan = job(tables)
    advice = the(wide_vectors(advised(plan)))
    assert "above 4 x the median of 64" in advice.because
    half = table("wide", dim=512, ranks=[0])
    assert advice.gain_ms == pytest.approx(gain_of(plan, replace(plan, tables=(half, *tables[1:]))))
    assert advice.gain_ms > 0
    assert wide_vectors(advised(even())) == []


def test_nothing_left():
    inside = job([table("t", ranks=[0], dim=4)], world=1, per_host=1)
    assert the(nothing_left(advised(inside), [])).rule == "nothing_left"
    big = advised(even())
    some = Advice("x", "", "", "", gain_ms=big.step_ms / 2)
    assert nothing_left(big, [some]) == []
    assert "gains 0 ms" in the(nothing_left(big, [replace(some, gain_ms=-1.0)])).because


# All of them


def changed_table(entry: PlannedTable) -> PlannedTable:
    return replace(entry, ranks=(entry.ranks + 1) % 4)


def test_a_changed_table_is_forecast_as_in_the_whole_job():
    # The short cut of `with_tables` against the long way round, for every kind of exchange and mixed codecs.
    tables = [
        table("a", dim=48, ranks=[0], pooling=[2.0, 3.0]),
        table("b", kind="row_wise", ranks=range(4)),
        table("c", dim=32, kind="column_wise", ranks=[0, 1]),
        table("d", kind="table_row_wise", ranks=[2, 3]),
        table("e", dim=24, ranks=[3], pooling=[4.0], pooled=False, module="ec"),
        table("f", kind="data_parallel", ranks=()),
    ]
    policy = Policy("int8", "int4", (Rule("a", forward="bf16"), Rule(link="intra_host", forward="fp16")))
    plan = job(tables, policy=policy)
    start = advised(plan, {**FAST, "bf16": (3.0, 4.0), "fp16": (5.0, 6.0), "int8": (7.0, 8.0), "int4": (9.0, 10.0)})
    other = [changed_table(tables[0]), tables[1], changed_table(tables[2]), tables[3], changed_table(tables[4]), tables[5]]
    short = start.with_tables({0: other[0], 2: other[2], 4: other[4]})
    long = start.predict(replace(plan, tables=tuple(other)))
    assert start.ms(short) == pytest.approx(start.ms(long)) != pytest.approx(start.step_ms)
    for name in ("ids_sent", "ids_received", "lookups", "rows", "memory"):
        assert getattr(short, name).tolist() == [pytest.approx(row) for row in getattr(long, name).tolist()]


def test_every_rule_is_asked():
    assert {adviser.__name__ for adviser in ADVISERS} == {
        name
        for name, value in globals().items()
        if callable(value) and value.__module__.startswith("torchrec_qcomm.planner.advice.")
    } - {"AdvisedJob", "nothing_left"}
