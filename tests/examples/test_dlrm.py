"""The example as a user runs it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import torch
from dlrm_lib.options import parse_options

from tests.examples.conftest import ROOT, Launch
from tests.examples.interpreters import Interpreters

DLRM = ROOT / "examples" / "dlrm.py"
SYNTHETIC = ("--data", "synthetic", "--synthetic-samples", 2_000, "--batch-size", 60, "--limit-batches", 6)


def config(folder: Path, text: str) -> Path:
    path = folder / "policy.yaml"
    path.write_text(text)
    return path


def test_flights_with_the_demo_config(torchrun: Launch, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    done = torchrun(DLRM, "--config", "configs/demo.yaml", "--compare", "--limit-batches", 3, "--json", out)
    assert done.returncode == 0, done.stderr
    assert "WARNING: the policy quantizes" not in done.stderr
    for text in ("base rate 0.2371", "held-out AUC", "held-out normalized entropy", "time per step", "FP32 wire", "difference"):
        assert text in done.stdout
    report = json.loads(out.read_text())
    about = {"config", "data", "settings", "world_size", "device", "versions"}
    assert set(report) == about | {"policy", "warnings", "arms"}
    assert report["config"] == "configs/demo.yaml"
    assert report["device"] == "cpu" or torch.cuda.is_available()
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
    assert "Constrain those that are data_parallel" in done.stderr
    assert "Training: FP32 wire (the plugin with `none`: bit-equal to TorchRec" in done.stdout
    named = re.findall(r"^(t_cat_\d+) ", done.stdout, re.MULTILINE)
    assert named[:26] == [f"t_cat_{i}" for i in range(26)]  # of the policy
    assert named[26:] == [name for name in named[:26] if name != "t_cat_3"]  # of the bytes


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
        alone = [
            line for line in done.stderr.splitlines() if "WARNING: there is one rank only, so nothing is exchanged" in line
        ]
        shouts.append(len(alone))
        assert ("nothing was exchanged" in done.stdout) is bool(alone)
        assert "t_cat_" not in done.stderr
        assert "Constrain" not in done.stderr
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert shouts == [2, 0]  # before and after the training


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


def test_constraints_that_leave_no_plan_end_every_rank_with_a_message(interpreters: Interpreters, tmp_path: Path) -> None:
    """The kernel is one that a CPU does not have. Started without torchrun, which would end the second rank itself."""
    policy = config(tmp_path, "sharding: [{tables: '*', compute_kernels: [fused_uvm]}]")
    command = [DLRM, "--config", policy, *SYNTHETIC]
    for process in interpreters.run(command, tmp_path, ranks=2, timeout=100, CUDA_VISIBLE_DEVICES=""):
        said = process.stderr
        assert process.returncode == 2, said
        assert "policy.yaml: sharding: TorchRec cannot plan this; got 'No available sharding type" in said
        assert "Look at `sharding_types` and `compute_kernels`" in said
        assert "search above" not in said
        assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compare"], "--compare needs --config"),
        (["--dim", "30"], "multiple of 4"),
        (["--epochs", "0"], "not a count: '0'"),
        (["--seed", "-1"], "seed"),
        (["--seed", str(2**64)], "not a seed"),
        (["--json", str(ROOT)], "--json: a folder"),
        (["--json", ""], "--json: a folder"),
        (["--json", str(ROOT / "nothing" / "report.json")], "--json: cannot write there"),
        (["--json", str(DLRM / "report.json")], "--json: cannot write there"),
        (["--dense-lr", "nan"], "not a learning rate: 'nan'"),
    ],
)
def test_bad_options_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(arguments)
    assert message in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report.json").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) == tmp_path)  # root could write it whatever its mode
    with pytest.raises(SystemExit):
        parse_options(["--json", str(tmp_path / "report.json")])
    assert "cannot write there" in capsys.readouterr().err
    assert parse_options(["--json", str(tmp_path / "new.json")]).json == str(tmp_path / "new.json")
    monkeypatch.setenv("RANK", "1")  # does not write
    parse_options(["--json", str(tmp_path / "report.json")])


def test_an_empty_config_is_one() -> None:
    assert parse_options(["--compare", "--config", ""]).config == ""
    assert parse_options(["--seed", str(2**64 - 1)]).seed == 2**64 - 1
