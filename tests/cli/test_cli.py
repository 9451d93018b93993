"""The command line: exit codes, help from an empty folder, and what `check` prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torchrec_qcomm.cli.main import main

CONFIG = """
batch_size: 64
precision:
  default: {forward: fp8_e4m3, backward: fp8_e5m2}
  rules:
    - {tables: t_big, forward: int4}
    - {where: {max_rows: 1000, min_dim: 4}, forward: none, backward: none}
    - {link: intra_host, forward: bf16}
    - {tables: [t_big, t_ids], link: self, forward: none}
    - {tables: gone, forward: int8, allow_unmatched: true}
topology: {hosts: 2, devices_per_host: 4, device: cuda, inter_host_gb_per_s: 12.5}
tables:
  - {name: t_big, rows: 40000000, dim: 128}
  - {name: t_tiny, rows: 40, dim: 12}
  - {name: t_ids, rows: 4001, dim: 65, collection: ec}
"""

PRINTED = """\
config.yaml: valid

batch size: 64 per rank
topology:   2 x 4 cuda = 8 ranks, 12.5 GB/s between hosts
tables:     3, 40,004,041 rows

rules (the first match wins, forward and backward apart):
  0  t_big                    forward int4
  1  rows <= 1,000; dim >= 4  forward none      backward none
  2  link intra_host          forward bf16
  3  t_big, t_ids; link self  forward none
  4  gone                     forward int8
  -  default                  forward fp8_e4m3  backward fp8_e5m2

table         rows  dim  fp32 B/row  link        forward   rule  B/row  ratio  backward  rule  B/row  ratio
t_big   40,000,000  128         512  all         int4         0     68  7.53x  fp8_e5m2     -    129  3.97x
t_tiny          40   12          48  all         none         1     48  1.00x  none         1     48  1.00x
t_ids        4,001   65         260  self        none         3    260  1.00x  fp8_e5m2     -     66  3.94x
                                     intra_host  bf16         2    130  2.00x  fp8_e5m2     -     66  3.94x
                                     inter_host  fp8_e4m3     -     66  3.94x  fp8_e5m2     -     66  3.94x

note: rule 4 decides nothing: it matches no table, or earlier rules have decided all that it says
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("config.yaml")
    path.write_text(CONFIG)
    return path


def test_check_prints_the_resolved_policy(config, capsys):
    assert main(["check", str(config)]) == 0
    printed = capsys.readouterr()
    assert printed.out == PRINTED
    assert printed.err == ""


def test_check_tells_what_a_range_costs_beside_the_rows(config, capsys):
    config.write_text(
        CONFIG.replace("{tables: t_big, forward: int4}", "{tables: t_big, forward: {codec: int8, range: {ema: 0.9}}}")
    )
    assert main(["check", str(config)]) == 0
    out = capsys.readouterr().out
    assert "int8(range=ema 0.9)     0    128  4.00x" in out
    assert "note: int8(range=ema 0.9) also sends 8 bytes once for each table and pair of ranks: the range of its rows" in out


def test_check_tells_the_memory_of_the_machines(config, capsys):
    config.write_text(CONFIG.replace("inter_host_gb_per_s: 12.5", "inter_host_gb_per_s: 12.5, memory_gb: 80"))
    assert main(["check", str(config)]) == 0
    assert "= 8 ranks, 12.5 GB/s between hosts, 80 GB of memory\n" in capsys.readouterr().out


def test_check_without_tables_says_what_it_could_not_check(config, capsys):
    config.write_text("precision: {rules: [{tables: gone, forward: int8}]}")
    assert main(["check", str(config)]) == 0
    out = capsys.readouterr().out
    assert "0  gone     forward int8" in out
    assert "-  default  forward none  backward none" in out
    assert "no `tables` block" in out


@pytest.mark.parametrize(
    ("text", "reason"),
    [("batch_size: 0", "config.yaml: batch_size: "), (None, "config.yaml: no such file")],
)
def test_a_wrong_config_is_exit_code_1_and_no_traceback(config, capsys, text, reason):
    config.unlink()
    if text is not None:
        config.write_text(text)
    assert main(["check", str(config)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(reason)
    assert "Traceback" not in printed.err


@pytest.mark.parametrize("argv", [[], ["chek", "a.yaml"], ["check"], ["check", "a.yaml", "b.yaml"]])
def test_a_wrong_command_line_is_exit_code_2(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "usage: torchrec-qcomm" in capsys.readouterr().err


@pytest.mark.parametrize("program", ["script", "module"])
def test_help_from_an_empty_folder(tmp_path, program):
    script = Path(sys.executable).parent / "torchrec-qcomm"
    if program == "script" and not script.exists():
        pytest.skip("the package is not installed here, so there is no torchrec-qcomm script")
    start = [str(script)] if program == "script" else [sys.executable, "-m", "torchrec_qcomm"]
    done = subprocess.run([*start, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert "check" in done.stdout


def test_help_needs_no_torch():
    code = (
        "import sys\n"
        "from torchrec_qcomm.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_stops_early_is_no_error():
    """As in ``torchrec-qcomm check FILE | head -1``."""
    command = [
        sys.executable,
        "-m",
        "torchrec_qcomm",
        "check",
        str(Path(__file__).parents[2] / "configs" / "dlrm_dcnv2_mixed.yaml"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 0
