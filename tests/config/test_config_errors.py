"""Every mistake in a file is named: the file, the key path, the value, what is allowed, the nearest known name."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchrec_qcomm import ConfigError, QCommConfig, load_config

RULE = "precision: {rules: [%s]}"

MISTAKES = {
    # unknown keys, at every level
    "precison: {}": ["precison: unknown key", "Did you mean 'precision'?"],
    "precision: {defualt: {}}": ["precision.defualt: unknown key", "allowed: default, rules", "Did you mean 'default'?"],
    "precision: {default: {foward: int8}}": ["precision.default.foward", "Did you mean 'forward'?"],
    RULE % "{table: a, forward: int8}": ["precision.rules.0.table: unknown key", "Did you mean 'tables'?"],
    RULE % "{where: {max_row: 3}, forward: int8}": ["precision.rules.0.where.max_row", "Did you mean 'max_rows'?"],
    "sharding: [{tables: a, sharding_type: [row_wise]}]": ["sharding.0.sharding_type:", "Did you mean 'sharding_types'?"],
    "topology: {hosts: 1, devices_per_hosts: 2}": ["topology.devices_per_hosts", "Did you mean 'devices_per_host'?"],
    "tables: [{name: a, rows: 1, dims: 2}]": ["tables.0.dims: unknown key", "tables.0.dim: a required key is missing"],
    "1: 2": ["1: a key that is not text", "allowed: batch_size"],
    # unknown values
    RULE % "{forward: int5}": ["precision.rules.0.forward: ", "got 'int5'", "allowed: bf16", "Did you mean 'int"],
    RULE % "{forward: {codec: int9}}": ["precision.rules.0.forward: ", "int9", "Did you mean 'int"],
    RULE % "{forward: 8}": ["precision.rules.0.forward: not a codec", "got 8", "int8"],
    RULE % "{backward: {codec: int8, rounding: stochastc}}": ["precision.rules.0.backward: ", "rounding", "'stochastic'"],
    RULE % "{forward: int8, backward: {codec: fp16, loss_scal: 3}}": ["precision.rules.0.backward: ", "loss_scal"],
    RULE % "{link: intra, forward: int8}": ["precision.rules.0.link: unknown link", "'intra'", "Did you mean 'intra_host'?"],
    "sharding: [{tables: a, sharding_types: [tablewise]}]": [
        "sharding.0.sharding_types.0: unknown sharding type",
        "got 'tablewise'",
        "Did you mean 'table_wise'?",
    ],
    "sharding: [{tables: a, compute_kernels: [fusd]}]": ["sharding.0.compute_kernels.0", "Did you mean 'fused'?"],
    "topology: {hosts: 1, devices_per_host: 1, device: cud}": ["topology.device: unknown device", "Did you mean 'cuda'?"],
    "tables: [{name: a, rows: 1, dim: 2, dtype: fp23}]": ["tables.0.dtype", "Did you mean 'fp32'?"],
    "tables: [{name: a, rows: 1, dim: 2, collection: bag}]": ["tables.0.collection", "allowed: ebc, ec"],
    # numbers
    "batch_size: true": ["batch_size: wrong value", "got True", "integer"],
    "batch_size: 0": ["batch_size", "got 0", "greater than or equal to 1"],
    "batch_size: 2.5": ["batch_size", "got 2.5", "integer"],
    'batch_size: "8"': ["batch_size", "got '8'", "without quotes"],
    "batch_size: 1e3": ["batch_size", "got '1e3'", "YAML reads this as text"],
    "topology: {hosts: 1, devices_per_host: 1, intra_host_gb_per_s: .nan}": ["topology.intra_host_gb_per_s", "nan", "finite"],
    "topology: {hosts: 1, devices_per_host: 1, inter_host_gb_per_s: -1}": ["topology.inter_host_gb_per_s", "got -1"],
    "topology: {hosts: 1, devices_per_host: 1, inter_host_gb_per_s: .inf}": ["topology.inter_host_gb_per_s", "got inf"],
    "topology: {hosts: 2, devices_per_host: 1, pod_hosts: 3}": ["topology: pod_hosts is above hosts", "at most 2"],
    "sharding: [{tables: a, min_partition: 6}]": ["sharding.0.min_partition", "got 6", "multiple of 4"],
    "sharding: [{tables: a, pooling_factors: [0.0]}]": ["sharding.0.pooling_factors.0", "greater than 0"],
    "tables: [{name: a, rows: 1, dim: 2, features: [x, y], pooling: [1.0]}]": ["tables.0", "1 values for 2 features"],
    # shapes
    "precision: 3": ["precision: not a mapping", "got 3", "allowed: default, rules"],
    "precision: {rules: {forward: int8}}": ["precision.rules: not a list"],
    RULE % "int8": ["precision.rules.0: not a mapping", "got 'int8'"],
    RULE % "{tables: [a, 1], forward: int8}": ["precision.rules.0.tables: not a table name", "got ['a', 1]"],
    RULE % "{tables: [], forward: int8}": ["precision.rules.0.tables"],
    "sharding: [{tables: a, sharding_types: []}]": ["sharding.0.sharding_types: an empty list"],
    RULE % "{tables: a, forward: int8, allow_unmatched: sure}": ["precision.rules.0.allow_unmatched", "'sure'", "boolean"],
    # what says nothing
    RULE % "{tables: a}": ["precision.rules.0", "decides nothing"],
    RULE % "{where: {}, forward: int8}": ["precision.rules.0.where: no bound given"],
    RULE % "{where: {min_rows: 5, max_rows: 3}, forward: int8}": ["precision.rules.0.where.min_rows", "got 5", "at most 3"],
    RULE % "{tables: a, forward: }": ["precision.rules.0.forward: a key with no value", "`none`"],
    "sharding: [{tables: a}]": ["sharding.0: it constrains nothing", "sharding_types"],
    "batch_size:": ["batch_size: a key with no value"],
    # between blocks
    "tables: [{name: ab, rows: 1, dim: 2}]\n" + RULE % "{tables: abc, forward: int8}": [
        "precision.rules.0.tables: matches no table; got 'abc'; allowed: ab. Did you mean 'ab'?",
        "allow_unmatched: true",
    ],
    "tables: [{name: ab, rows: 1, dim: 2}]\nsharding: [{tables: 'x*', min_partition: 8}]": [
        "sharding.0.tables: matches no table; got 'x*'"
    ],
    "tables: [{name: a, rows: 1, dim: 2}, {name: a, rows: 1, dim: 2}]": ["tables: a table is listed 2 times", "'a'"],
    "tables: [{name: a, rows: 1, dim: 2}]\nsharding: [{tables: a, pooling_factors: [1.0, 2.0]}]": [
        "sharding.0.pooling_factors: 2 values for the 1 features of table 'a'"
    ],
    # the file itself
    "": ["empty", "batch_size, hierarchical_row_wise, precision"],
    "# nothing": ["empty"],
    "- 1": ["not a mapping", "got [1]"],
    "text": ["not a mapping", "got 'text'"],
    "batch_size: 1\nprecision: {}\nbatch_size: 2": ["line 3, column 1", "key 'batch_size' is given twice"],
    RULE % "{forward: int8,\n forward: int4}": ["line 2, column 2", "key 'forward' is given twice"],
    "batch_size: [1\nx: }": ["line 2, column 2"],
    "x: !!python/object:os.system {}": ["line 1, column 4", "python/object"],
    "? [a, b]\n: 3": ["line 1", "a key that is a list or a mapping"],
}


@pytest.mark.parametrize("text", MISTAKES, ids=lambda text: text[:60].replace("\n", " "))
def test_mistake_is_named(text, tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert [part for part in MISTAKES[text] if part not in message] == [], message


def test_all_problems_are_listed_each_with_the_file():
    data = {
        "batch_size": None,
        "precison": {},
        "precision": {"rules": [{"forward": "int5"}, {"tables": "a", "forward": None}, {"link": "far", "forward": "int8"}]},
        "topology": {"hosts": 0},
    }
    with pytest.raises(ConfigError) as caught:
        QCommConfig.from_dict(data, source="x.yaml")
    first, *problems = str(caught.value).splitlines()
    assert first == "x.yaml: 7 problems:"
    assert sorted(line.strip().split(": ")[1] for line in problems) == [
        "batch_size",
        "precision.rules.0.forward",
        "precision.rules.1.forward",
        "precision.rules.2.link",
        "precison",
        "topology.devices_per_host",
        "topology.hosts",
    ]
    assert all(line.startswith("  x.yaml: ") for line in problems)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "demo.yaml").write_text("batch_size: 1")
    with pytest.raises(ConfigError, match=r"demo\.yml: no such file.*Did you mean .*demo\.yaml"):
        load_config(tmp_path / "demo.yml")
    with pytest.raises(ConfigError, match="no such file"):
        load_config(str(tmp_path / "none" / "demo.yaml"))
    with pytest.raises(ConfigError, match="a directory"):
        load_config(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(Path(tmp_path / "binary.yaml"))


def test_allow_unmatched_is_taken_at_its_word():
    tables = [{"name": "a", "rows": 1, "dim": 2}]
    rule = {"tables": "gone", "forward": "int8", "allow_unmatched": True}
    sharding = {"tables": "gone", "min_partition": 8, "allow_unmatched": True}
    config = QCommConfig.from_dict({"tables": tables, "precision": {"rules": [rule]}, "sharding": [sharding]})
    assert config.policy.rules[0].unmatched_globs(["a"]) == ()


def test_globs_wait_for_the_model_if_the_file_lists_no_tables():
    assert (
        QCommConfig.from_dict({"precision": {"rules": [{"tables": "x", "forward": "int8"}]}})
        .policy.rules[0]
        .unmatched_globs(["a"])
    )


def test_yaml_that_is_nested_without_end(tmp_path):
    (tmp_path / "deep.yaml").write_text("[" * 3000)
    with pytest.raises(ConfigError, match=r"deep.yaml: nested too deeply"):
        load_config(tmp_path / "deep.yaml")


def test_an_offending_value_is_shown_in_part(tmp_path):
    (tmp_path / "long.yaml").write_text("x" * 100_000)
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "long.yaml")
    assert len(str(caught.value)) < 1000
    assert "(100,002 characters)" in str(caught.value)


def test_a_second_document_and_an_empty_path(tmp_path):
    (tmp_path / "two.yaml").write_text("batch_size: 1\n---\nbatch_size: 2\n")
    with pytest.raises(
        ConfigError, match=r"two.yaml: line 2, column 1: expected a single document.*, but found another document"
    ):
        load_config(tmp_path / "two.yaml")
    with pytest.raises(ConfigError, match="an empty path"):
        load_config("")
