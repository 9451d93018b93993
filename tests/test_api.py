"""The public names, and what joins a config to TorchRec."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection, ManagedCollisionEmbeddingCollection
from torchrec.modules.mc_modules import DistanceLFU_EvictionPolicy, ManagedCollisionCollection, MCHManagedCollisionModule

import torchrec_qcomm as qc

PUBLIC = {
    *("load_config", "QCommConfig", "get_sharders", "get_planner", "get_topology", "get_constraints", "export_plan"),
    *(
        "Policy",
        "Rule",
        "Where",
        "Table",
        "QCommStats",
        "analyse",
        "profile_lookups",
        "report_text",
        "report_json",
        "report_html",
        "QCommEmbeddingBagCollectionSharder",
        "QCommEmbeddingCollectionSharder",
        "codecs",
        "state_dict",
        "load_state_dict",
        "measure_traffic",
        "Traffic",
    ),
    *(
        "QCommError",
        "CodecError",
        "PolicyError",
        "ConfigError",
        "ShardingError",
        "PlannerError",
        "WireError",
        "DisagreementError",
    ),
    "__version__",
}

TABLES = [{"name": "t_a", "rows": 100, "dim": 32, "pooling": [3.0]}, {"name": "t_b", "rows": 5000, "dim": 64}]


def config(**blocks: object) -> qc.QCommConfig:
    return qc.QCommConfig.from_dict({"batch_size": 16, **blocks}, source="my.yaml")


def topology(**changes: object) -> dict[str, object]:
    return {"hosts": 2, "devices_per_host": 8, "device": "cpu", **changes}


@pytest.fixture
def model():
    tables = [
        EmbeddingBagConfig(name=t["name"], num_embeddings=t["rows"], embedding_dim=t["dim"], feature_names=[t["name"][2:]])
        for t in TABLES
    ]
    return nn.ModuleDict({"ebc": EmbeddingBagCollection(tables=tables, device=torch.device("meta"))})


@pytest.fixture
def two_ranks(monkeypatch):
    """A job of two ranks on one host, as far as anyone asks."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")


def test_public_names():
    assert set(qc.__all__) == PUBLIC
    assert [name for name in PUBLIC if getattr(qc, name, None) is None] == []
    assert set(dir(qc)) >= PUBLIC
    with pytest.raises(AttributeError, match="get_shrders"):
        qc.get_shrders  # noqa: B018
    from torchrec_qcomm import api

    assert qc.get_sharders is api.get_sharders


def test_import_is_light():
    code = "import sys, torchrec_qcomm; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0


OURS = {
    EmbeddingBagCollection,
    FeatureProcessedEmbeddingBagCollection,
    EmbeddingCollection,
    ManagedCollisionEmbeddingBagCollection,
    ManagedCollisionEmbeddingCollection,
}


def test_sharders_are_torchrecs_with_ours_in_their_places(caplog):
    caplog.set_level(logging.INFO, logger="torchrec_qcomm")
    got, native = qc.get_sharders(), get_default_sharders()
    assert [s.module_type for s in got] == [s.module_type for s in native]
    said, untouched = caplog.messages[-1].split("; by TorchRec itself, unquantized: ")
    assert said.startswith("exchanged by torchrec_qcomm: EmbeddingBagCollection, FeatureProcessed")
    for sharder, theirs in zip(got, native, strict=True):
        inner = getattr(sharder, "_ebc_sharder", getattr(sharder, "_e_sharder", sharder))
        quantizing = isinstance(inner, qc.QCommEmbeddingBagCollectionSharder | qc.QCommEmbeddingCollectionSharder)
        assert quantizing == (sharder.module_type in OURS)
        assert quantizing or type(sharder) is type(theirs)
        assert sharder.module_type.__name__ in (said if quantizing else untouched).replace(",", " ").split()


def test_what_a_newer_torchrec_adds_stays_its_own(monkeypatch):
    class Newer(EmbeddingBagCollectionSharder):
        """Of a module that this package has never heard of."""

    defaults = [Newer(), *reversed(get_default_sharders())]
    monkeypatch.setattr("torchrec_qcomm.sharding.modules.sharders.get_default_sharders", lambda: defaults)
    got = qc.get_sharders()
    assert got[0] is defaults[0]
    assert [s.module_type for s in got] == [s.module_type for s in defaults]


def test_sharders_check_the_rules_over_the_tables_of_all(tmp_path):
    """A rule may be for bags, sequences, or what holds them: none is unmatched because another sharder has the table."""
    path = tmp_path / "a.yaml"
    path.write_text(
        "precision: {rules: [{tables: bag, forward: int8}, {tables: seq, forward: int4}]}\nhierarchical_row_wise: true"
    )
    by_type = {s.module_type: s for s in qc.get_sharders(path)}
    bags, sequences = by_type[EmbeddingBagCollection], by_type[EmbeddingCollection]
    assert by_type[FeatureProcessedEmbeddingBagCollection]._ebc_sharder is bags
    assert by_type[ManagedCollisionEmbeddingBagCollection]._e_sharder is bags
    assert by_type[ManagedCollisionEmbeddingCollection]._e_sharder is sequences
    assert bags.policy == sequences.policy
    assert bags.hierarchical_row_wise
    bags.sharded_tables.add("bag")
    with pytest.raises(qc.PolicyError, match="'seq'"):
        bags.check_rules()
    sequences.sharded_tables.add("seq")
    bags.check_rules()


def ours(sharders: list[object]) -> qc.QCommEmbeddingBagCollectionSharder:
    (sharder,) = (s for s in sharders if isinstance(s, qc.QCommEmbeddingBagCollectionSharder))
    return sharder


def test_sharders_take_a_config_a_path_or_a_policy(tmp_path, monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    path = tmp_path / "a.yaml"
    path.write_text("precision: {default: {forward: int8}}\ntopology: {hosts: 2, devices_per_host: 8}")
    int8 = qc.Policy("int8")
    assert ours(qc.get_sharders()).policy == qc.Policy()
    assert ours(qc.get_sharders(int8)).policy == int8
    for like in (path, str(path), qc.load_config(path)):
        sharder = ours(qc.get_sharders(like))
        assert (sharder.policy, sharder.devices_per_host) == (int8, 8)
    with pytest.raises(qc.ConfigError, match="not a config"):
        qc.get_sharders({"batch_size": 8})  # type: ignore[arg-type]


def test_a_config_for_other_machines_is_refused(two_ranks, model):
    other = config(topology=topology())
    for use in (qc.get_sharders, qc.get_topology, lambda c: qc.get_planner(c, model)):
        with pytest.raises(
            qc.ConfigError, match=r"my\.yaml: topology: the file is for 2 hosts x 8 devices.*got 2; allowed: 16"
        ):
            use(other)
    with pytest.raises(qc.ConfigError, match=r"my\.yaml: topology\.devices_per_host: .*LOCAL_WORLD_SIZE.*got 2; allowed: 1"):
        qc.get_topology(config(topology=topology(devices_per_host=1)))
    assert qc.get_topology(config(topology=topology(hosts=1, devices_per_host=2))).world_size == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_config_for_another_device_is_refused(two_ranks):
    gpus = config(topology=topology(hosts=1, devices_per_host=2, device="cuda"))
    for use in (qc.get_sharders, qc.get_topology):
        with pytest.raises(qc.ConfigError, match=r"topology\.device: .*got 'cpu'; allowed: cuda"):
            use(gpus)


def test_topology_of_the_block_needs_no_job():
    got = qc.get_topology(config(topology=topology(inter_host_gb_per_s=50)))
    assert (got.world_size, got.local_world_size, got.compute_device) == (16, 8, "cpu")
    assert got.comms_bandwidths.inter_host_bw == 50e6
    for wrong in ({"world_size": 8}, {"local_world_size": 4}, {"device": torch.device("cuda:0")}):
        with pytest.raises(qc.ConfigError, match=r"my\.yaml: topology"):
            qc.get_topology(config(topology=topology()), **wrong)


def test_topology_without_a_block_is_that_of_the_job(two_ranks):
    for like in (config(), None):
        got = qc.get_topology(like, device="cpu")
        assert (got.world_size, got.local_world_size) == (2, 2)
    assert qc.get_topology(world_size=8, local_world_size=4, device="cpu").local_world_size == 4


def test_topology_of_nothing_is_refused():
    with pytest.raises(qc.ConfigError, match=r"world_size: unknown.*`topology` block"):
        qc.get_topology(config())
    with pytest.raises(qc.ConfigError, match="got 3; allowed: a divisor of 8"):
        qc.get_topology(world_size=8, local_world_size=3)


def test_constraints(model):
    got = qc.get_constraints(config(tables=TABLES, sharding=[{"tables": "t_b", "sharding_types": ["table_wise"]}]), model)
    assert got["t_b"].sharding_types == ["table_wise"]
    assert got["t_a"].pooling_factors == [3.0]  # from the tables block
    with pytest.raises(qc.PolicyError, match=r"my\.yaml: sharding\.0\.tables: matches no table; got 'x'; allowed: t_a, t_b"):
        qc.get_constraints(config(sharding=[{"tables": "x", "min_partition": 8}]), model)
    with pytest.raises(qc.PolicyError, match="no embedding tables found; got 'Linear'"):
        qc.get_constraints(config(), nn.Linear(1, 1))


def test_a_tables_block_is_that_of_the_model(model):
    wrong = [{"name": "t_a", "rows": 100, "dim": 16}, {"name": "t_c", "rows": 1, "dim": 64}]
    with pytest.raises(qc.ConfigError) as caught:
        qc.get_constraints(config(tables=wrong), model)
    sizes, missing, extra = str(caught.value).splitlines()
    assert "'t_a': other sizes than in the model; got 'rows 100, dim 16'; allowed: rows 100, dim 32" in sizes
    assert "'t_b': the model has this table" in missing
    assert "'t_c': not a table of the model" in extra


def test_planner_plans_with_our_sharders(model):
    sharding = [{"tables": "t_*", "sharding_types": ["column_wise"], "min_partition": 16}]
    planned = config(sharding=sharding, topology=topology(hosts=1, devices_per_host=2))
    plan = qc.get_planner(planned, model, debug=False).plan(model, qc.get_sharders(planned))
    shards = plan.plan["ebc"]["t_a"]
    assert shards.sharding_type == "column_wise"
    assert [shard.shard_sizes for shard in shards.sharding_spec.shards] == [[100, 16], [100, 16]]


def test_planner_gets_batch_size_and_topology(model):
    planner = qc.get_planner(config(topology=topology()), model)
    assert planner._batch_size == 16
    assert planner._topology.world_size == 16


def test_planner_refuses_rules_that_match_no_table(model):
    unmatched = config(topology=topology(), precision={"rules": [{"tables": "t_c", "forward": "int8"}]})
    with pytest.raises(qc.PolicyError, match=r"my\.yaml: precision\.rules\.0\.tables: matches no table; got 't_c'"):
        qc.get_planner(unmatched, model)


@pytest.fixture
def holding(model):
    """Tables of every kind of module: `t_a` and `t_b` in bags, `t_ids` in sequences, and a name each for what holds them."""
    meta = torch.device("meta")
    ids, managed_ids = (
        EmbeddingConfig(name=name, num_embeddings=10, embedding_dim=8, feature_names=[name]) for name in ("t_ids", "t_mcids")
    )
    pos, managed, fused = (
        EmbeddingBagConfig(name=name, num_embeddings=10, embedding_dim=8, feature_names=[name])
        for name in ("t_pos", "t_mc", "t_fused")
    )
    processors = PositionWeightedModuleCollection({"t_pos": 5})
    weighted = EmbeddingBagCollection(tables=[pos], is_weighted=True, device=meta)

    def collisions(config):
        policy = DistanceLFU_EvictionPolicy()
        remap = MCHManagedCollisionModule(10, torch.device("cpu"), policy, 2, input_hash_size=100)
        return ManagedCollisionCollection({config.name: remap}, [config])

    managed_bags = EmbeddingBagCollection(tables=[managed], device=meta)
    managed_sequences = EmbeddingCollection(tables=[managed_ids], device=meta)
    return nn.ModuleDict(
        {
            "bags": model,
            "ids": EmbeddingCollection(tables=[ids], device=meta),
            "processed": FeatureProcessedEmbeddingBagCollection(weighted, processors),
            "mc": ManagedCollisionEmbeddingBagCollection(managed_bags, collisions(managed)),
            "mcids": ManagedCollisionEmbeddingCollection(managed_sequences, collisions(managed_ids)),
            "fused": FusedEmbeddingBagCollection([fused], torch.optim.SGD, {"lr": 0.1}, device=meta),
        }
    )


def test_rules_for_tables_that_torchrec_exchanges_are_warned_of(holding, caplog):
    with caplog.at_level(logging.WARNING, logger="torchrec_qcomm"):
        qc.get_planner(config(precision={"default": {"forward": "int8", "backward": "none"}}, topology=topology()), holding)
        (said,) = (message for message in caplog.messages if "exchanges itself" in message)
        assert said.endswith("unquantized: t_fused")
        caplog.clear()
        others = [{"tables": name, "forward": "int8"} for name in ("t_[ab]", "t_ids", "t_pos", "t_mc*")]
        qc.get_planner(config(precision={"rules": others}, topology=topology()), holding)
        assert not caplog.records


def test_sharding_types_are_those_of_the_sharder_of_the_table(holding):
    """TorchRec lets position-weighted bags be row-wise on CPU, but not plain ones, and managed ones be nothing."""

    def asked(table):
        sharding = [{"tables": table, "sharding_types": ["row_wise"]}]
        return qc.get_planner(config(sharding=sharding, topology=topology()), holding)

    asked("t_pos")
    with pytest.raises(qc.ConfigError, match=r"table 't_a' .* on cpu; got \['row_wise'\]; allowed: column_wise"):
        asked("t_a")
    with pytest.raises(qc.ConfigError, match=r"table 't_mc' .* on cpu; got \['row_wise'\]; allowed: nothing"):
        asked("t_mc")
    asked("t_fused")  # TorchRec's own business


def test_sharding_types_that_cannot_be_had_are_said_with_their_place(model):
    constrained = config(sharding=[{"tables": "t_b", "sharding_types": ["row_wise"]}], topology=topology())
    with pytest.raises(
        qc.ConfigError, match=r"my.yaml: sharding: none of the sharding types of table 't_b' .* on cpu"
    ) as caught:
        qc.get_planner(constrained, model)
    assert "got ['row_wise']; allowed: column_wise, data_parallel, table_column_wise, table_wise" in str(caught.value)


@pytest.mark.parametrize("arguments", [{"world_size": 0}, {"world_size": -2}, {"world_size": 2, "device": "cpux"}])
def test_a_topology_of_nonsense_is_refused(arguments):
    with pytest.raises(qc.ConfigError, match=r"got (0|-2|'cpux')"):
        qc.get_topology(**arguments)


def test_devices_may_have_an_index():
    assert qc.get_topology(world_size=2, device="cpu:0").compute_device == "cpu"
