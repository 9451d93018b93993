"""What a valid config becomes."""

from __future__ import annotations

from pathlib import Path

import pytest
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.types import ShardingType

import torchrec_qcomm as qc
from torchrec_qcomm import codecs
from torchrec_qcomm.config import fields

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))

DESIGN = """
batch_size: 2048                                       # per rank
precision:
  default: {forward: fp8_e4m3, backward: fp8_e5m2}
  rules:
    - tables: "t_cat_2[0-4]"
      allow_unmatched: true
      forward: int4
      backward: {codec: int8}
    - where: {max_rows: 1000}
      forward: none
      backward: none
    - link: intra_host
      forward: bf16
sharding:
  - {tables: "t_cat_0", sharding_types: [row_wise], pooling_factors: [3.0]}
topology: {hosts: 2, devices_per_host: 8, device: cuda, intra_host_gb_per_s: 300, inter_host_gb_per_s: 50, pod_hosts: 1}
tables:
  - {name: t_cat_0, rows: 40000000, dim: 128, features: [cat_0], pooling: [3.0], dtype: fp32, collection: ebc}
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "config.yaml"
        path.write_text(text)
        return path

    return write


def test_the_example_of_the_documentation(write):
    config = qc.load_config(write(DESIGN))
    assert config.batch_size == 2048
    assert config.policy == qc.Policy(
        "fp8_e4m3",
        "fp8_e5m2",
        rules=(
            qc.Rule(tables="t_cat_2[0-4]", forward="int4", backward="int8", allow_unmatched=True),
            qc.Rule(where=qc.Where(max_rows=1000), forward="none", backward="none"),
            qc.Rule(link="intra_host", forward="bf16"),
        ),
    )
    assert config.sharding[0].sharding_types == ("row_wise",)  # valid here; whether it can be exchanged, the sharder says
    assert config.sharding[0].pooling_factors == (3.0,)
    assert (config.topology.world_size, config.topology.device, config.topology.intra_host_gb_per_s) == (16, "cuda", 300.0)
    assert config.tables[0].build() == qc.Table("t_cat_0", 40_000_000, 128)
    assert config.source.endswith("config.yaml")


def test_all_keys_are_optional_and_the_default_is_none(write):
    config = qc.load_config(write("batch_size: 8"))
    assert config.policy == qc.Policy()
    assert (config.sharding, config.tables, config.topology) == ((), (), None)
    assert qc.load_config(write("precision: {rules: []}")).policy == qc.Policy()


def test_codec_parameters_reach_the_spec():
    config = qc.QCommConfig.from_dict({"precision": {"default": {"backward": {"codec": "fp16", "loss_scale": 1024}}}})
    assert config.policy.backward == codecs.spec({"codec": "fp16", "loss_scale": 1024})
    assert config.policy.backward != codecs.spec("fp16")


def test_yaml_anchors_and_merges_are_no_duplicates(write):
    text = """
precision:
  default: &eight {forward: int8, backward: int8}
  rules:
    - {<<: *eight, tables: a, forward: int4}
"""
    (rule,) = qc.load_config(write(text)).policy.rules
    assert (rule.forward.name, rule.backward.name) == ("int4", "int8")


def test_a_config_is_frozen():
    config = qc.QCommConfig.from_dict({"batch_size": 8})
    with pytest.raises(ValueError, match="frozen"):
        config.batch_size = 9


def test_the_four_configs_are_there():
    assert {path.name for path in CONFIGS} >= {"uniform_fp8.yaml", "uniform_int8.yaml", "dlrm_dcnv2_mixed.yaml", "demo.yaml"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_config_loads_and_quantizes(path):
    assert path.read_text().startswith("# "), "a config says at its top what it is for"
    policy = qc.load_config(path).policy
    specs = [policy.forward, policy.backward, *(s for rule in policy.rules for s in (rule.forward, rule.backward) if s)]
    assert any(spec.name not in ("none", "fp32") for spec in specs)


def test_dlrm_dcnv2_is_the_published_one():
    config = qc.load_config(next(path for path in CONFIGS if path.name == "dlrm_dcnv2_mixed.yaml"))
    assert len(config.tables) == 26
    assert sum(table.rows for table in config.tables) == 204_184_588
    assert sum(sum(table.pooling) for table in config.tables) == 214
    resolved = config.policy.resolve(table.build() for table in config.tables)
    sites = [tuple(str(resolved.codec(t.name, d, "inter_host")) for d in ("forward", "backward")) for t in config.tables]
    assert {site: sites.count(site) for site in sites} == {
        ("int4", "int8"): 5,
        ("none", "none"): 6,
        ("fp8_e4m3", "fp8_e5m2"): 15,
    }


def test_demo_mixes_codecs_table_by_table():
    config = qc.load_config(next(path for path in CONFIGS if path.name == "demo.yaml"))
    sizes = {"t_date_tailnum": 248_000, "t_dow": 7, "t_route": 300}
    resolved = config.policy.resolve(qc.Table(name, rows, 32) for name, rows in sizes.items())
    got = [[str(resolved.codec(name, d, "inter_host")) for d in ("forward", "backward")] for name in sizes]
    assert got == [["int4", "int8"], ["none", "none"], ["fp8_e4m3", "fp8_e5m2"]]
    assert config.topology is None  # any number of ranks
    assert {t for entry in config.sharding for t in entry.sharding_types or ()} == {"table_wise", "column_wise"}


def test_names_that_are_written_out_are_torchrecs():
    assert set(fields.SHARDING_TYPES) == {member.value for member in ShardingType}
    assert set(fields.COMPUTE_KERNELS) <= {member.value for member in EmbeddingComputeKernel}
