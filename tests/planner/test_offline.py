"""A plan from a config alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import torchrec_qcomm as qc
from torchrec_qcomm.api import plan_offline
from torchrec_qcomm.errors import PlannerError
from torchrec_qcomm.planner import ListedTable, Machines, Replicas, model_of, model_tables
from torchrec_qcomm.planner.sources.offline import group_shape
from torchrec_qcomm.policy import Table

DLRM = Path(__file__).parents[2] / "configs" / "dlrm_dcnv2_mixed.yaml"


def config(**blocks: object) -> qc.QCommConfig:
    tables = [
        {"name": "bag", "rows": 1000, "dim": 32, "features": ["a", "b"], "pooling": [3.0, 1.0], "dtype": "fp16"},
        {"name": "seq", "rows": 100, "dim": 16, "collection": "ec"},
        {"name": "wide", "rows": 100, "dim": 64, "collection": "ec", "features": ["a"]},
    ]
    default = {"batch_size": 16, "tables": tables, "topology": {"hosts": 2, "devices_per_host": 2, "device": "cuda"}}
    given = {name: block for name, block in {**default, **blocks}.items() if block is not None}
    return qc.QCommConfig.from_dict(given, source="my.yaml")


@pytest.mark.parametrize("hosts", [2, 4, 8])
def test_dlrm_dcnv2_is_planned_without_gpus(hosts):
    job = plan_offline(DLRM, hosts=hosts)
    assert job.machines == Machines(8 * hosts, 8, 1, 450.0, 50.0, "cuda")
    assert job.batch_size == 4096
    assert job.policy == qc.load_config(DLRM).policy
    assert len(job.tables) == 26
    assert sum(sum(table.pooling) for table in job.tables) == 214  # the published multi-hot sizes
    assert {table.table.dim for table in job.tables} == {128}
    assert all(sum(table.shard_dims) == 128 and max(table.ranks) < 8 * hosts for table in job.tables)
    assert len({rank for table in job.tables for rank in table.ranks}) >= 16  # of 26 tables, not all on one host
    assert not any("pooling" in text for text in job.assumptions)  # the file gives them
    assert any("32 GiB" in text for text in job.assumptions)


def test_the_hosts_of_the_file_count_unless_others_are_asked_for():
    assert plan_offline(config()).machines.world_size == 4
    assert plan_offline(config(), hosts=1).machines.world_size == 2


def test_tables_become_collections():
    job = plan_offline(config())
    tables = {table.table.name: table for table in job.tables}
    assert {name: (t.module, t.pooled, t.features, t.pooling) for name, t in tables.items()} == {
        "bag": ("ebc", True, ("a", "b"), (3.0, 1.0)),
        "seq": ("ec_16", False, ("seq",), (1.0,)),
        "wide": ("ec_64", False, ("a",), (1.0,)),
    }
    assert tables["bag"].value_bytes == 2
    (said,) = (text for text in job.assumptions if "pooling" in text)
    assert "2 tables" in said


def test_dtypes_and_one_collection_for_one_dim():
    listed = [ListedTable(Table(name, 10, 8), dtype=torch.bfloat16, pooled=False) for name in ("x", "y")]
    model = model_of(listed)
    assert [entry.module for entry in model_tables(model)] == ["ec", "ec"]
    assert {parameter.dtype.itemsize for parameter in model.parameters()} == {2}
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_constraints_of_the_file_hold():
    sharding = [{"tables": "bag", "sharding_types": ["table_row_wise"]}, {"tables": "seq", "sharding_types": ["row_wise"]}]
    tables = {table.table.name: table for table in plan_offline(config(sharding=sharding)).tables}
    assert tables["bag"].sharding_type == "table_row_wise"
    assert sorted(tables["bag"].ranks.tolist()) in ([0, 1], [2, 3])
    assert tables["seq"].ranks.tolist() == [0, 1, 2, 3]


def test_what_the_file_leaves_out_is_said():
    job = plan_offline(config(batch_size=None, topology={"hosts": 1, "devices_per_host": 2}))
    assert job.batch_size == 512
    assert "batch size 512 a rank, TorchRec's default" in job.assumptions
    assert "devices are cuda" in job.assumptions
    job = plan_offline(config(topology={"hosts": 1, "devices_per_host": 2, "device": "cpu"}))
    assert not any("cuda" in text or "batch" in text or "share a host" in text for text in job.assumptions)


def test_a_block_that_is_missing_is_asked_for():
    with pytest.raises(qc.ConfigError, match=r"my\.yaml: tables: .*a `tables` block. List them: `tables:"):
        plan_offline(config(tables=None))
    with pytest.raises(qc.ConfigError, match=r"my\.yaml: topology: .*a `topology` block. Name the machines: `topology:"):
        plan_offline(config(topology=None))


def test_tables_that_do_not_fit_have_no_plan():
    tables = [{"name": "huge", "rows": 10**9, "dim": 128}]
    sharding = [{"tables": "huge", "sharding_types": ["table_wise"], "compute_kernels": ["fused"]}]
    with pytest.raises(PlannerError, match=r"TorchRec's planner finds no plan: .*Constrain less"):
        plan_offline(config(tables=tables, sharding=sharding))


def test_memory_decides_what_can_be_planned():
    """51 GB of weights in one piece: too much for TorchRec's 32 GiB, and for each rank of a sharding group."""
    tables = [{"name": "large", "rows": 10**8, "dim": 128}]
    sharding = [{"tables": "large", "sharding_types": ["table_wise"], "compute_kernels": ["fused"]}]
    machines = {"hosts": 2, "devices_per_host": 2, "device": "cuda"}
    small, big = (config(tables=tables, sharding=sharding, topology=machines | more) for more in ({}, {"memory_gb": 80}))
    with pytest.raises(PlannerError, match="no plan"):
        plan_offline(small)
    assert not any("32 GiB" in text for text in plan_offline(big).assumptions)
    assert plan_offline(big, replicas=Replicas(group_size=2)).machines.world_size == 4
    assert any("topology.memory_gb is not given: 32 GiB" in text for text in plan_offline(config()).assumptions)


def test_with_replicas_the_plan_is_that_of_a_sharding_group():
    """[0, 2], [1, 3]: a group has one rank on each of the two hosts."""
    sharding = [{"tables": "bag", "sharding_types": ["row_wise"]}]
    job = plan_offline(config(sharding=sharding), replicas=Replicas(group_size=2))
    assert job.machines == plan_offline(config()).machines
    assert {table.table.name: table.ranks.tolist() for table in job.tables}["bag"] == [0, 1]
    assert group_shape([0, 2, 4, 6], devices_per_host=4, pod_hosts=4) == (2, 2)
    assert group_shape([4, 5, 6, 7], devices_per_host=4, pod_hosts=2) == (4, 1)
    with pytest.raises(PlannerError, match="different numbers of ranks on different hosts"):
        group_shape([0, 1, 2], devices_per_host=2)
