"""What TorchRec's planner hands out becomes a job; what it does not say becomes a sentence."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.types import PlannerError as NativePlannerError
from torchrec.distributed.planner.types import Topology
from torchrec.modules.embedding_configs import DataType
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection

import torchrec_qcomm as qc
from torchrec_qcomm.errors import PlannerError
from torchrec_qcomm.planner import (
    Machines,
    PlannerInputs,
    Replicas,
    build_topology,
    job_from_options,
    machines_of,
    plan_options,
    policy_of,
)
from torchrec_qcomm.planner.sources.offline import KeptPlan
from torchrec_qcomm.policy import Direction, Link, Policy, Table

META = torch.device("meta")


def bag(name: str, features: list[str], rows: int = 1000, dim: int = 32, data_type: DataType = DataType.FP32):
    return EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=dim, feature_names=features, data_type=data_type)


class Model(nn.Module):
    """Plain bags, weighted ones, positions, and a sequence."""

    def __init__(self) -> None:
        super().__init__()
        plain = [bag("t_a", ["a", "b"]), bag("t_b", ["c"], 64, 64, DataType.FP16)]
        self.bags = EmbeddingBagCollection(tables=plain, device=META)
        self.weighted = EmbeddingBagCollection(tables=[bag("t_w", ["w"])], is_weighted=True, device=META)
        inside = EmbeddingBagCollection(tables=[bag("t_p", ["p"])], is_weighted=True, device=META)
        self.processed = FeatureProcessedEmbeddingBagCollection(inside, PositionWeightedModuleCollection({"p": 5}))
        ids = EmbeddingConfig(name="s", num_embeddings=50, embedding_dim=16, feature_names=["d"])
        self.ids = EmbeddingCollection(tables=[ids], device=META)


def constrained(**tables: dict[str, object]) -> dict[str, ParameterConstraints]:
    return {name: ParameterConstraints(**fields) for name, fields in tables.items()}


KINDS = {
    "t_a": {"sharding_types": ["row_wise"]},
    "t_b": {"sharding_types": ["column_wise"], "min_partition": 16},
    "t_w": {"sharding_types": ["data_parallel"]},
    "t_p": {"sharding_types": ["table_wise"]},
    "s": {"sharding_types": ["row_wise"]},
}


def job_of(kinds=KINDS, policy=None, sharders=None, **arguments):
    topology = build_topology(4, 2, "cuda", 300, 50)
    constraints = constrained(**kinds)
    sharders = sharders or qc.get_sharders(policy)
    known = arguments.pop("pooling_known", ())
    inputs = PlannerInputs(topology, 8, sharders, constraints, known)
    return job_from_options(plan_options(Model(), inputs), inputs, **arguments)


@pytest.fixture(scope="module")
def tables():
    return {table.table.name: table for table in job_of().tables}


def test_tables_are_those_of_the_modules(tables):
    assert {name: (t.table, t.module, t.features) for name, t in tables.items()} == {
        "t_a": (Table("t_a", 1000, 32), "bags", ("a", "b")),
        "t_b": (Table("t_b", 64, 64), "bags", ("c",)),
        "t_w": (Table("t_w", 1000, 32), "weighted", ("w",)),
        "t_p": (Table("t_p", 1000, 32), "processed", ("p",)),
        "s": (Table("s", 50, 16), "ids", ("d",)),
    }
    assert {name for name, table in tables.items() if not table.pooled} == {"s"}
    assert {name: table.value_bytes for name, table in tables.items()} == {"t_a": 4, "t_b": 2, "t_w": 4, "t_p": 4, "s": 4}


def test_shards_have_their_ranks_and_sizes(tables):
    rows = tables["s"]  # of 50 rows, 13 a rank, as TorchRec deals them out
    assert (rows.ranks.tolist(), rows.shard_rows.tolist()) == ([0, 1, 2, 3], [13, 13, 13, 11])
    assert (rows.row_offsets.tolist(), rows.shard_dims.tolist()) == ([0, 13, 26, 39], [16] * 4)
    columns = tables["t_b"]
    assert sum(columns.shard_dims) == 64
    assert len(columns.ranks) == len(columns.shard_dims) > 1
    assert columns.row_offsets.tolist() == [0] * len(columns.ranks)
    assert tables["t_w"].sharding_type == "data_parallel"
    assert len(tables["t_w"].ranks) == 0


def test_every_feature_has_a_pooling_factor():
    """TorchRec's default is one factor, whatever the number of features."""
    job = job_of()
    (table,) = (t for t in job.tables if t.table.name == "t_a")
    assert table.pooling == (1.0, 1.0)
    (said,) = (text for text in job.assumptions if text.startswith("pooling factor 1"))
    assert "for 5 tables" in said
    given = {**KINDS, "t_a": {**KINDS["t_a"], "pooling_factors": [3.0, 2.5]}, "t_b": {"pooling_factors": [1.0]}}
    job = job_of(given, pooling_known=["t_b"])
    assert {t.table.name: t.pooling for t in job.tables}["t_a"] == (3.0, 2.5)
    (said,) = (text for text in job.assumptions if text.startswith("pooling factor 1"))
    assert "3 tables" in said
    assert "t_b" not in said


def test_factors_that_do_not_fit_the_features_are_said():
    job = job_of({**KINDS, "t_a": {"pooling_factors": [4.0]}})
    assert {t.table.name: t.pooling for t in job.tables}["t_a"] == (4.0, 4.0)
    assert "table t_a: pooling factors [4.0] are not one for each of 2 features: 4 for all" in job.assumptions


def test_bags_and_batch_sizes_of_features():
    kinds = {**KINDS, "t_a": {"pooling_factors": [2.0, 1.0], "num_poolings": [1.0, 3.0], "batch_sizes": [8, 4]}}
    table = {t.table.name: t for t in job_of(kinds).tables}["t_a"]
    assert table.num_poolings == (1.0, 1.5)  # 3 bags for each of 4 samples, of 8 that a rank has
    assert {t.table.name: t.num_poolings for t in job_of().tables}["t_a"] == ()


def test_only_the_weighted_tables_are_weighted(tables):
    """https://github.com/meta-pytorch/torchrec/pull/1250: a flag that marked all."""
    assert {name for name, table in tables.items() if table.weighted} == {"t_w"}
    # Weights of positions are made before the ids leave only if rows are dealt out.
    by_rows = {t.table.name: t for t in job_of({**KINDS, "t_p": {"sharding_types": ["row_wise"]}}).tables}
    assert by_rows["t_p"].weighted


def test_payload_is_that_of_the_lookups_not_of_the_weights(tables):
    assert {table.payload for table in tables.values()} == {torch.float32}
    half = EmbeddingBagCollectionSharder(fused_params={"output_dtype": DataType.FP16})
    got = {t.table.name: t for t in job_of(sharders=[half, *qc.get_sharders()[1:]]).tables}
    assert (got["t_b"].payload, got["s"].payload) == (torch.float16, torch.float32)
    both = {"t_a": {"sharding_types": ["table_wise"], "output_dtype": DataType.FP16}, "t_b": {"sharding_types": ["table_wise"]}}
    got = {t.table.name: t for t in job_of({**KINDS, **both}).tables}
    assert got["t_a"].payload == torch.float32  # one exchange with t_b, which is FP32


def test_policy_is_that_of_the_sharders():
    policy = Policy("int8", "fp16")
    sharders = qc.get_sharders(policy)
    assert policy_of(sharders) == job_of(sharders=sharders).policy == policy
    assert policy_of([EmbeddingBagCollectionSharder()]) == Policy()
    assert job_of(sharders=sharders).under(Policy()).policy == Policy()
    with pytest.raises(PlannerError, match="sharders: they have different policies"):
        policy_of([*sharders, *qc.get_sharders(Policy("int4"))])


def test_hierarchical_row_wise_is_that_of_the_sharders():
    assert not job_of().hierarchical_row_wise
    sharders = qc.get_sharders(qc.QCommConfig.from_dict({"hierarchical_row_wise": True}))
    assert job_of(sharders=sharders).hierarchical_row_wise


def test_tables_that_torchrec_exchanges_move_as_they_are():
    sharders = [EmbeddingBagCollectionSharder(), *qc.get_sharders(Policy("int8", "int8"))[1:]]
    job = job_of(sharders=sharders)
    resolved = job.policy.resolve(table.table for table in job.tables)
    coded = {t.name for t in resolved.tables if resolved.codec(t.name, Direction.FORWARD, Link.INTER_HOST).name == "int8"}
    assert coded == {"t_p", "s"}  # positions have bags of their own sharder
    assert any("exchanged by TorchRec itself" in text and "t_a" in text for text in job.assumptions)


def test_without_a_plan_there_is_no_job():
    """As TorchRec's planner calls its stats if it finds none: the last proposal, every rank -1."""
    topology, kept = Topology(2, "cuda", hbm_cap=100_000, ddr_cap=0, local_world_size=2), KeptPlan()
    planner = EmbeddingShardingPlanner(topology=topology, batch_size=8, stats=kept, debug=False)
    model, sharders = Model(), qc.get_sharders()
    with pytest.raises(NativePlannerError):
        planner.plan(model, sharders)
    assert kept.options
    for options in (kept.options, []):
        with pytest.raises(PlannerError, match="there is no plan"):
            job_from_options(options, PlannerInputs(topology, 8))
    with pytest.raises(PlannerError, match=r"TorchRec's planner finds no plan.*got '2 ranks, 2 a host, cuda'"):
        plan_options(model, PlannerInputs(topology, 8, sharders))


def test_machines_are_those_of_the_topology():
    machines, assumed = machines_of(build_topology(16, 4, "cuda", 300, 50, pod_hosts=2))
    assert machines == Machines(16, 4, 2, 300.0, 50.0, "cuda")
    assert machines.hosts == 4
    assert assumed == []
    # TorchRec takes all ranks for one host if nobody says how many there are: 0 % across hosts, then, is no finding.
    _, assumed = machines_of(Topology(16, "cuda"))
    assert "all 16 ranks share a host" in assumed[0]


def test_ranks_must_exist():
    two = Replicas(group_size=2)
    machines = Machines(8, 2)
    with pytest.raises(PlannerError, match=r"a shard is on a rank that there is not.*the ranks of a sharding group: 0 to 1"):
        job_of(machines=machines, replicas=two)
    job = job_of(machines=machines, replicas=Replicas(group_size=4))
    assert job.groups() == [[0, 2, 4, 6], [1, 3, 5, 7]]
