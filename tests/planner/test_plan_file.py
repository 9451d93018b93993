"""A plan that was written is the plan that is read; other files are refused with their place."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torchrec.distributed.types import ShardingPlan

import torchrec_qcomm as qc
from torchrec_qcomm.api import plan_offline
from torchrec_qcomm.errors import PlannerError
from torchrec_qcomm.planner import (
    Job,
    ListedTable,
    Machines,
    PlannedTable,
    PlannerInputs,
    Replicas,
    build_topology,
    job_from_options,
    model_of,
)
from torchrec_qcomm.planner.sources.offline import KeptPlan
from torchrec_qcomm.planner.sources.plan_file import read_plan, read_plan_or_stats, write_plan
from torchrec_qcomm.planner.sources.stats_csv import read_stats_csv
from torchrec_qcomm.policy import Direction, Link, Policy, Table

DATA = Path(__file__).parent / "data"
DLRM = Path(__file__).parents[2] / "configs" / "dlrm_dcnv2_mixed.yaml"


def same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return a is not None and b is not None and np.array_equal(a, b) and a.dtype == b.dtype
    return a == b


def differing(a: Job, b: Job) -> list[str]:
    found = [f.name for f in fields(Job) if f.name != "tables" and not same(getattr(a, f.name), getattr(b, f.name))]
    for one, other in zip(a.tables, b.tables, strict=True):
        found += [f.name for f in fields(PlannedTable) if not same(getattr(one, f.name), getattr(other, f.name))]
    return found


@pytest.fixture(scope="module")
def dlrm():
    return plan_offline(DLRM)


@pytest.fixture
def path(tmp_path, dlrm):
    write_plan(dlrm, tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_what_is_written_is_read(path, dlrm, tmp_path):
    assert differing(read_plan(path), dlrm.under(Policy())) == []
    assert differing(read_plan_or_stats(path, policy=dlrm.policy), dlrm) == []
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]  # nothing is left beside it
    real = read_stats_csv(DATA / "torchrec_example_tables.csv")  # fractions of bags, sequences, hosts that are not known
    real = replace(real, replicas=Replicas(96, False, 5, 8), hierarchical_row_wise=True, index_bytes=4)
    real = replace(real, length_bytes=4, weight_bytes=2)
    write_plan(real, path)
    assert differing(read_plan(path), real) == []


def test_tables_that_torchrec_exchanges_stay_so(path, dlrm):
    write_plan(replace(dlrm, untouched=("t_cat_[0]", "t_cat_1")), path)
    job = read_plan(path, Policy("int8", "int8"))
    resolved = job.policy.resolve(table.table for table in job.tables)
    coded = {n: resolved.codec(n, Direction.FORWARD, Link.INTRA_HOST).name for n in ("t_cat_0", "t_cat_1", "t_cat_2")}
    assert coded == {"t_cat_0": "int8", "t_cat_1": "none", "t_cat_2": "int8"}  # names are no globs
    assert job.under(job.policy).policy == job.policy


def test_one_reader_tells_json_from_csv(path):
    assert len(read_plan_or_stats(path).tables) == 26
    real = read_plan_or_stats(DATA / "torchrec_example_tables.csv", Machines(96, 8))
    assert len(real.tables) == 1935
    assert {table.value_bytes for table in real.tables} == {2}  # as the file of the ranks beside it tells
    with pytest.raises(PlannerError, match="cannot be read"):
        read_plan_or_stats(DATA / "none.json")
    with pytest.raises(PlannerError, match=r"README\.md: neither a plan file nor planner statistics as CSV"):
        read_plan_or_stats(DATA / "README.md")


def test_machines_and_batch_may_be_others(path, dlrm):
    other = Machines(16, 4, inter_host_gb_per_s=25.0)
    job = read_plan_or_stats(path, other, batch_size=8)
    assert (job.machines, job.batch_size) == (other, 8)
    with pytest.raises(PlannerError, match=r"plan\.json: machines: .*got 32; allowed: 16\. Plan again"):
        read_plan_or_stats(path, Machines(32, 8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema="other"), r"plan\.json: schema: not a plan of this package; got 'other'"),
        (lambda d: d.update(version=2), r"plan\.json: version: written by another version .*; got 2; allowed: 1"),
        (lambda d: d.pop("machines"), r"plan\.json: the key 'machines' is missing"),
        (lambda d: d["machines"].pop("pod_hosts"), r"plan\.json: machines: the key 'pod_hosts' is missing"),
        (lambda d: d["machines"].update(world_size="16"), r"machines\.world_size: not a whole number; got '16'"),
        (lambda d: d.update(machines=[]), r"plan\.json: machines: not a mapping"),
        (lambda d: d.update(tables={}), r"plan\.json: tables: not a list"),
        (lambda d: d["tables"][3].pop("ranks"), r"plan\.json: tables\.3: the key 'ranks' is missing"),
        (lambda d: d["tables"][3].update(ranks=[-1]), r"tables\.3\.ranks\.0: not a whole number; got -1; allowed: 0 or more"),
        (lambda d: d["tables"][3].update(shard_dims=[1, 2, 3, 4, 5]), r"tables\.3\.shard_dims: not one for each shard"),
        (lambda d: d["tables"][3].update(pooling=[]), r"tables\.3\.pooling: not one for each feature"),
        (lambda d: d["tables"][3].update(pooling=["1"]), r"tables\.3\.pooling\.0: not a number; got '1'"),
        (lambda d: d["tables"][3].update(sharding_type="CW"), r"tables\.3\.sharding_type: unknown; got 'CW'; allowed: column"),
        (lambda d: d["tables"][3].update(pooled=1), r"tables\.3\.pooled: neither true nor false; got 1"),
        (lambda d: d["tables"][3].update(name=None), r"tables\.3\.name: not a text; got None"),
        (lambda d: d["tables"][3].update(payload="int8"), r"tables\.3\.payload: unknown; got 'int8'"),
        (lambda d: d.update(planned_memory=[1.0]), r"planned_memory: not a number for each rank; got \[1\.0\]; allowed: 16"),
        (lambda d: d["machines"].update(world_size=8), "a shard is on a rank that there is not|not a number for each rank"),
    ],
)
def test_other_files_are_refused_with_their_place(path, change, message):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(PlannerError, match=message):
        read_plan(path)


def test_no_json_and_no_place_are_said(path, tmp_path, dlrm):
    path.write_text('{"schema": ')
    with pytest.raises(PlannerError, match=r"plan\.json: cannot be read; got 'Expecting value"):
        read_plan(path)
    with pytest.raises(PlannerError, match=r"plan\.json: cannot be written"):
        write_plan(dlrm, tmp_path / "missing" / "plan.json")


def config(**blocks: object) -> qc.QCommConfig:
    default = {
        "batch_size": 16,
        "precision": {"default": {"forward": "int8"}},
        "topology": {"hosts": 2, "devices_per_host": 2, "device": "cuda", "inter_host_gb_per_s": 50},
        "sharding": [
            {"tables": "a", "sharding_types": ["row_wise"], "pooling_factors": [3.0]},
            {"tables": "b", "sharding_types": ["data_parallel"]},
            {"tables": "[cd]", "sharding_types": ["table_row_wise"]},
            {"tables": "s", "sharding_types": ["column_wise"], "min_partition": 8},
        ],
    }
    return qc.QCommConfig.from_dict({**default, **blocks}, source="my.yaml")


@pytest.fixture
def model():
    bags = [ListedTable(Table(name, 100 * (i + 1), 16), features=(f"f_{name}",)) for i, name in enumerate("abcd")]
    return model_of([*bags, ListedTable(Table("s", 50, 32), pooled=False)])


def test_a_plan_of_a_job_is_written_for_elsewhere(tmp_path, model):
    """As the planner gave it to its stats, but for the memory, which a plan does not tell."""
    kept = KeptPlan()
    planner = qc.get_planner(config(), model, stats=kept)
    sharders = qc.get_sharders(config())
    plan = planner.plan(model, sharders)
    qc.export_plan(plan, model, tmp_path / "plan.json", config())
    got = read_plan_or_stats(tmp_path / "plan.json", policy=config().policy)
    constraints = qc.get_constraints(config(), model)
    topology = build_topology(4, 2, "cuda", inter_host_gb_per_s=50)
    job = job_from_options(kept.options, PlannerInputs(topology, 16, sharders, constraints, ["a"]))
    by_name = {table.table.name: table for table in got.tables}
    assert {name: table.sharding_type for name, table in by_name.items()} == {
        "a": "row_wise",
        "b": "data_parallel",
        "c": "table_row_wise",
        "d": "table_row_wise",
        "s": "column_wise",
    }
    assert by_name["a"].pooling == (3.0,)
    assert job.planned_memory.sum() > 0
    assert differing(got, job) == ["planned_memory"]


def test_a_plan_of_another_model_is_refused(tmp_path, model):
    plan = qc.get_planner(config(), model).plan(model, qc.get_sharders(config()))
    other = model_of([ListedTable(Table("a", 100, 16))])
    only = config(sharding=[])
    with pytest.raises(PlannerError, match=r"plan: module 'ec': the plan shards what is no such module.*before it is sharded"):
        qc.export_plan(ShardingPlan({"ec": plan.plan["ec"]}), other, tmp_path / "p", only)
    with pytest.raises(PlannerError, match=r"plan: module 'ebc': the plan has a table that the module has not; got 'b'"):
        qc.export_plan(ShardingPlan({"ebc": plan.plan["ebc"]}), other, tmp_path / "p", only)
    wrapped = torch.nn.ModuleDict({"ebc": torch.nn.Linear(1, 1), "own": other})
    with pytest.raises(PlannerError, match=r"plan: module 'ebc': no sharder takes this module; got 'Linear'"):
        qc.export_plan(ShardingPlan({"ebc": plan.plan["ebc"]}), wrapped, tmp_path / "p", only)


def test_hosts_that_nobody_names_are_not_known(tmp_path, model, monkeypatch):
    """Where nothing says how many ranks a host has, TorchRec takes 8."""
    plan = qc.get_planner(config(), model).plan(model, qc.get_sharders(config()))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 4)
    yaml = {"sharding": [{"tables": "a", "pooling_factors": [3.0]}]}
    for local, known in (("2", 2), (None, None)):
        if local is None:
            monkeypatch.delenv("LOCAL_WORLD_SIZE")
        else:
            monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
        qc.export_plan(plan, model, tmp_path / "plan.json", qc.QCommConfig.from_dict(yaml))
        assert read_plan_or_stats(tmp_path / "plan.json").machines.devices_per_host == known
