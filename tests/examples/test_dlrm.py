"""The example as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dlrm_lib.options import parse_options

from tests.examples.conftest import ROOT, Launch

DLRM = ROOT / "examples" / "dlrm.py"
SYNTHETIC = ("--data", "synthetic", "--synthetic-samples", 2_000, "--batch-size", 60, "--limit-batches", 6)


def config(folder: Path, text: str) -> Path:
    path = folder / "policy.yaml"
    path.write_text(text)
    return path


def test_flights_with_the_demo_config(launch: Launch, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    done = launch(DLRM, "--config", "configs/demo.yaml", "--compare", "--limit-batches", 3, "--json", out)
    assert done.returncode == 0, done.stderr
    assert "WARNING: the policy quantizes" not in done.stderr
    for text in ("base rate 0.2371", "held-out AUC", "held-out normalized entropy", "time per step", "FP32 wire", "difference"):
        assert text in done.stdout
    report = json.loads(out.read_text())
    assert set(report) == {"data", "settings", "world_size", "versions", "policy", "warnings", "arms"}
    assert report["warnings"]["tables_without_exchange"] == {}
    assert report["world_size"] == 2
    fp32, policy = report["arms"]["FP32 wire"], report["arms"]["policy"]
    assert len(fp32["losses"]) == len(policy["losses"]) == 3
    assert fp32["losses"] != policy["losses"]  # the codecs are in the path
    for arm in (fp32, policy):
        assert 0 <= arm["auc"] <= 1
        assert arm["normalized_entropy"] > 0
        assert arm["samples"] > 0
        assert arm["step_ms_median"] > 0
        assert set(arm["traffic"]["tables"]) == set(report["policy"])  # every table is exchanged
    for direction in ("forward", "backward"):
        assert fp32["traffic"]["total"][direction]["wire_bytes"] == fp32["traffic"]["total"][direction]["fp32_bytes"]
        # 3 steps of 512 samples go to the other rank, for 18 tables of dim 32
        assert policy["traffic"]["total"][direction]["fp32_bytes"] == 3 * 512 * 18 * 32 * 4
        assert policy["traffic"]["total"][direction]["wire_bytes"] < fp32["traffic"]["total"][direction]["wire_bytes"]
    tailnum = report["policy"]["t_tailnum"]
    assert tailnum["forward"]["inter_host"].startswith("fp8_e4m3")
    assert tailnum["quantizes"]


def test_arms_start_alike_and_tables_without_exchange_are_shouted(launch: Launch, tmp_path: Path) -> None:
    # Gradients alone are quantized, so the first loss is that of the initial weights.
    policy = config(
        tmp_path,
        """
precision: {default: {backward: int8}}
sharding:
  - {tables: t_cat_3, sharding_types: [data_parallel]}
  - {tables: t_cat_5, sharding_types: [column_wise], min_partition: 16}
  - {tables: "*", sharding_types: [table_wise]}
""",
    )
    out = tmp_path / "report.json"
    done = launch(DLRM, "--config", policy, "--compare", *SYNTHETIC, "--json", out)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    fp32, quantized = (report["arms"][name]["losses"] for name in ("FP32 wire", "policy"))
    assert fp32[0] == quantized[0]
    assert fp32[1:] != quantized[1:]
    assert list(report["warnings"]["tables_without_exchange"]) == ["t_cat_3"]
    assert done.stderr.count("WARNING: the policy quantizes these tables, but nothing of them is exchanged:") == 2
    assert "t_cat_3: the planner made it data_parallel" in done.stderr
    assert "t_cat_5:" not in done.stderr
    assert "t_cat_3" not in report["arms"]["policy"]["traffic"]["tables"]


def test_initial_weights_do_not_depend_on_the_sharding_and_one_rank_alone_is_shouted(launch: Launch, tmp_path: Path) -> None:
    """One rank table-wise, two ranks column-wise: the same first loss, since the global batch is the same too."""
    text = (
        "precision: {{default: {{backward: int4}}}}\nsharding: [{{tables: '*', sharding_types: [{kind}], min_partition: 16}}]"
    )
    losses, shouts = [], []
    for ranks, kind in ((None, "table_wise"), (2, "column_wise")):
        out = tmp_path / f"{kind}.json"
        arguments = (*SYNTHETIC[:4], "--batch-size", 60 if ranks else 120, "--limit-batches", 1, "--json", out)
        done = launch(DLRM, "--config", config(tmp_path, text.format(kind=kind)), *arguments, ranks=ranks)
        assert done.returncode == 0, done.stderr
        losses.append(json.loads(out.read_text())["arms"]["policy"]["losses"][0])
        shouts.append("t_cat_25: there is one rank only" in done.stderr)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert shouts == [True, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--config", "{folder}/policy.yaml"), "policy.yaml: precision.default.forward"),
        (("--criteo", "{folder}/train.txt"), "train.txt:1: wrong number of tab-separated fields; got 2"),
    ],
)
def test_bad_files_are_told_without_a_traceback(
    launch: Launch, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    config(tmp_path, "precision: {default: {forward: int5}}")
    (tmp_path / "train.txt").write_text("1\t2\n")
    done = launch(DLRM, *(a.format(folder=tmp_path) for a in arguments), ranks=None)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compare"], "--compare needs --config"),
        (["--dim", "30"], "multiple of 4"),
        (["--epochs", "0"], "not a count: '0'"),
        (["--seed", "-1"], "seed"),
        (["--dense-lr", "nan"], "not a learning rate: 'nan'"),
    ],
)
def test_bad_options_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(arguments)
    assert message in capsys.readouterr().err
