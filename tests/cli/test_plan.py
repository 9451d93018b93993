"""``torchrec-qcomm plan``: from YAML alone, beside what would be if, and of a plan from a run."""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.report.planning import model
from torchrec_qcomm import codecs
from torchrec_qcomm.cli.main import main
from torchrec_qcomm.planner.findings.speeds import measured_speeds
from torchrec_qcomm.planner.units import size

CONFIG = """
batch_size: 64
precision: {default: {forward: int8, backward: fp8_e5m2}}
topology: {hosts: 2, devices_per_host: 4, device: cuda, intra_host_gb_per_s: 450, inter_host_gb_per_s: 50}
sharding: [{tables: "*", sharding_types: [table_wise]}]
tables:
"""
TABLES = [(f"t_{index}", 32 * (1 + index % 2), 1000 + index) for index in range(8)]
COLUMNS = "fqn,sharding,sum_pooling_factor,output,features,emb_dim,hash_size,ranks"


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = [f"  - {{name: {name}, rows: {rows}, dim: {dim}, pooling: [2.0]}}" for name, dim, rows in TABLES]
    Path("config.yaml").write_text(CONFIG + "\n".join(lines) + "\n")
    Path("int4.yaml").write_text("precision: {default: {forward: int4, backward: int4}}\n")
    Path("speeds.yaml").write_text("int8: [40, 60]\nfp8_e5m2: [30, 20.5]\nint4: [1, 1]\n")
    Path("stats.csv").write_text(
        "\n".join([COLUMNS, *(f"m.ebc.{n},TW,2.0,pooled,1,{d},{r},{i}" for i, (n, d, r) in enumerate(TABLES))]) + "\n"
    )
    return Path("config.yaml")


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["plan", *argv]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["plan", *argv]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    return err


def row(text: str, label: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"  {label}  ") and line.endswith((" %", "hosts")))
    return re.split(r"\s{2,}", line.strip())[1:]


def test_from_yaml_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """8 ranks x 64 samples x (4 tables of dim 32 and 4 of 64): INT8 rows have 8 bytes more than values, FP8 rows 1."""
    text = run(capsys, "config.yaml")
    assert text.startswith("Forecast of a step: config.yaml\n  8 ranks: 2 hosts of 4, batch 64 a rank\n")
    samples, rows = 8 * 64, 4 * (32 + 64)
    before, forward, backward = samples * 4 * rows, samples * (rows + 8 * 8), samples * (rows + 8)
    for way, after in (("forward", forward), ("backward", backward)):
        assert row(text, way) == [size(before), size(after), f"{100 * (1 - after / before):.1f} %"]
    assert row(text, "share, a rank's own counted")[-1] == "50.0 %"
    assert row(text, "share, a rank's own left out")[-1] == "57.1 %"
    assert "What if" not in text
    assert run(capsys, "config.yaml") == text


def test_files_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "config.yaml", "--json", "a.json", "--html", "a.html")
    assert text.endswith("\nwritten: a.json\n\nwritten: a.html\n")
    said = json.loads(Path("a.json").read_text())
    assert said["title"] == "config.yaml"
    assert {table["name"] for table in said["tables"]} == {name for name, _, _ in TABLES}
    assert "Embedding exchange: config.yaml" in Path("a.html").read_text()


def test_what_if_is_a_further_column(capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["hosts=4", "2d=4", "2d=4:strided", "policy=int4.yaml", "hosts=4,policy=int4.yaml"]
    argv = [argument for change in changes for argument in ("--what-if", change)]
    text = run(capsys, "config.yaml", *argv).partition("What if")[2]
    names = ["as it is", *changes]
    found: dict[str, dict[str, str]] = {name: {} for name in names}
    for block in text.split("\n\n")[1:]:
        head, *lines = block.splitlines()
        shown = re.split(r"\s{2,}", head.strip())
        for line in lines:
            label, *cells = re.split(r"\s{2,}", line.strip())
            for name, cell in zip(shown, cells, strict=True):
                found[name][label] = cell
    base = found["as it is"]
    assert (base["ranks"], base["hosts"], base["ranks of a sharding group"]) == ("8", "2", "8")
    assert (found["hosts=4"]["ranks"], found["hosts=4"]["hosts"]) == ("16", "4")
    assert found["hosts=4"]["share, own counted"] == "75.0 %"
    assert found["2d=4"]["ranks of a sharding group"] == "4"
    assert (base["crosses hosts"] != "0 B", found["2d=4"]["crosses hosts"]) == (True, "0 B")
    assert found["2d=4:strided"]["share, own counted"] == "50.0 %"
    for way, plain in (("forward", "forward, without codecs"), ("backward", "backward, without codecs")):
        ratio = sum(codecs.get("int4").row_bytes(dim) for _, dim, _ in TABLES) / sum(4 * dim for _, dim, _ in TABLES)
        for name in ("policy=int4.yaml", "hosts=4,policy=int4.yaml"):
            cell, before = (float(found[name][label].split()[0]) for label in (way, plain))
            scale = 1000 if found[name][plain].endswith("MB") else 1
            assert cell == pytest.approx(before * scale * ratio, rel=0.01)
    assert found["policy=int4.yaml"]["saved"] > base["saved"]
    assert found["hosts=4,policy=int4.yaml"]["ranks"] == "16"
    assert (base["tables"], found["2d=4"]["tables"]) == ("8 tw", "8 tw")
    weights = {name: float(column["weights of the fullest rank"].split()[0]) for name, column in found.items()}
    assert weights["2d=4"] > weights["as it is"] == weights["policy=int4.yaml"]  # each group of 4 ranks holds all tables


def test_weights_that_are_synced_less_often_take_less(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "config.yaml", "--what-if", "2d=4", "--what-if", "2d=4,sync=10").partition("What if")[2]
    rows = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    number = re.compile(r"([\d.]+) (µs|ms)( \+ coding)?")
    cells = {
        label: [float(cell[1]) * {"ms": 1, "µs": 1e-3}[cell[2]] for cell in map(number.fullmatch, columns) if cell]
        for label, *columns in rows
        if columns and number.fullmatch(columns[0])
    }
    _, often, seldom = cells["weight sync of 2D"]
    assert often == pytest.approx(10 * seldom, rel=0.01)
    parts = ("time with the policy", "ids, beside it", "weight sync of 2D")
    for column, whole in enumerate(cells["all of these, in turn"]):
        assert whole == pytest.approx(sum(cells[part][column] for part in parts), rel=0.01)


def test_speeds_from_a_file_can_make_it_slower(capsys: pytest.CaptureFixture[str]) -> None:
    without = run(capsys, "config.yaml")  # no such device here, so nothing is measured
    if "NOT COUNTED" not in without:
        pytest.skip("this machine has a GPU, so speeds were measured")
    assert "no speed is known of fp8_e5m2, int8" in without
    given = run(capsys, "config.yaml", "--speeds", "speeds.yaml", "--what-if", "policy=int4.yaml")
    assert "NOT COUNTED" not in given
    assert "given in speeds.yaml" in given
    assert "int4.yaml: PREDICTED TO BE SLOWER by " in given
    assert "NOT COUNTED" in run(capsys, "config.yaml", "--speeds", "none")


def test_speeds_are_measured_on_the_device_of_the_config(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchrec_qcomm.planner.findings.speeds.measured_speeds", partial(measured_speeds, values=2**14))
    cpu = Path("config.yaml").read_text().replace("device: cuda", "device: cpu")
    Path("cpu.yaml").write_text(cpu)
    text = run(capsys, "cpu.yaml")
    assert "NOT COUNTED" not in text
    assert re.search(r"  int8 +[\d.e+]+ +[\d.e+]+  measured here on cpu", text)


def test_a_plan_from_statistics(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "config.yaml", "--plan", "stats.csv", "--what-if", "policy=int4.yaml")
    assert text.startswith("Forecast of a step: config.yaml, plan of stats.csv\n  8 ranks: 2 hosts of 4, batch 64 a rank\n")
    assert row(text, "share, a rank's own counted")[-1] == "50.0 %"
    Path("bare.yaml").write_text("batch_size: 64\nprecision: {default: {forward: int8}}\n")
    bare = run(capsys, "bare.yaml", "--plan", "stats.csv")
    assert "8 ranks, ranks of a host not known" in bare
    assert "not known: nothing says how many ranks a host has" in bare


def test_a_plan_that_the_hook_exported(capsys: pytest.CaptureFixture[str]) -> None:
    import torchrec_qcomm as qc

    Path("run.yaml").write_text("batch_size: 32\ntopology: {hosts: 2, devices_per_host: 2, device: cpu}\n")
    stats = qc.QCommStats(export="plan.json")
    qc.get_planner("run.yaml", model(), stats=[stats]).plan(model(), qc.get_sharders("run.yaml"))
    Path("other.yaml").write_text("precision: {rules: [{tables: t_a, forward: int4}]}\n")
    text = run(capsys, "other.yaml", "--plan", "plan.json", "--speeds", "none")
    assert "4 ranks: 2 hosts of 2, batch 32 a rank" in text
    assert re.search(r"^  t_a +32 .* int4,none", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("no.yaml",), "no.yaml: no such file"),
        (("int4.yaml",), "int4.yaml: tables: without a model, nothing is known but what this block says"),
        (("config.yaml", "--what-if", "host=8"), "--what-if: nothing that can be changed; got 'host=8'; allowed: policy=FILE"),
        (("config.yaml", "--what-if", "hosts=2,hosts=4"), "hosts is changed twice; got 'hosts=2,hosts=4'; allowed: once"),
        (("config.yaml", "--what-if", "hosts=0"), "--what-if hosts=0: not a number; got '0'; allowed: 1 or more"),
        (("config.yaml", "--what-if", "2d=4:stride"), "unknown kind of sharding groups; got 'stride'; allowed: strided"),
        (("config.yaml", "--what-if", "sync=5"), "--what-if sync=5: without 2D parallelism there are no weights to sync"),
        (("config.yaml", "--plan", "int4.yaml"), "int4.yaml: neither a plan file nor planner statistics as CSV"),
        (("config.yaml", "--what-if", "2d=3"), "got 3; allowed: a divisor of 8"),
        (("config.yaml", "--what-if", "policy=no.yaml"), "no.yaml: no such file"),
        (("config.yaml", "--plan", "stats.csv", "--what-if", "hosts=4"), "--what-if hosts: stats.csv places shards on its own"),
        (("config.yaml", "--plan", "stats.csv", "--what-if", "2d=4"), "got 4; allowed: policy=FILE with --plan"),
        (("config.yaml", "--plan", "no.json"), "no.json: cannot be read"),
        (
            ("config.yaml", "--speeds", "config.yaml"),
            "config.yaml: batch_size: not two speeds; got 64; allowed: [encode, decode]",
        ),
        (("config.yaml", "--speeds", "no.yaml"), "no.yaml: no such file"),
        (("config.yaml", "--json", "no/a.json"), "no/a.json: cannot be written (No such file or directory)"),
    ],
)
def test_wrong_input_is_refused(argv: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refused(capsys, *argv)


def test_rules_that_match_no_table_of_the_plan_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("gone.yaml").write_text("batch_size: 64\nprecision: {rules: [{tables: t_gone, forward: int8}]}\n")
    for argv in (("gone.yaml", "--plan", "stats.csv"), ("config.yaml", "--what-if", "policy=gone.yaml")):
        said = refused(capsys, *argv)
        assert "gone.yaml: precision.rules.0.tables: matches no table; got 't_gone'" in said


def test_names_as_torcheasyrec_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Its features have feature_name, num_buckets and embedding_dim; a table is named after its feature."""
    features = [("user_id", 250000), ("item_id", 250000), ("city", 400)]
    tables = [f"  - {{name: {n}_emb, rows: {b}, dim: 16, features: [{n}]}}" for n, b in features]
    Path("tzrec.yaml").write_text(
        "precision: {default: {forward: int8}, rules: [{tables: city_emb, forward: none}]}\n"
        "topology: {hosts: 1, devices_per_host: 2, device: cuda}\n"
        'sharding: [{tables: "*", sharding_types: [table_wise, row_wise]}]\n'
        "tables:\n" + "\n".join(tables)
    )
    text = run(capsys, "tzrec.yaml")
    assert re.search(r"^  user_id_emb +16 +\w+ +int8,none ", text, re.MULTILINE)
    assert re.search(r"^  city_emb +16 +\w+ +none ", text, re.MULTILINE)


def test_help_needs_no_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(sys.modules, "torchrec_qcomm.cli.plan", raising=False)
    with pytest.raises(SystemExit, match="0"):
        main(["plan", "--help"])
    assert "torchrec_qcomm.cli.plan" not in sys.modules
    assert "--what-if CHANGE" in capsys.readouterr().out
