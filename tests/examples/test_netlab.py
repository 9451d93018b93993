"""What emulated hosts leave behind, and how a bad link is told. Their bytes: tests/sharding/test_link_counters.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.conftest import ROOT

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(not (shutil.which("ip") and shutil.which("tc")), reason="needs ip and tc (iproute2)"),
]


def netlab(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A run whose temporary files go under ``folder``."""
    command = [sys.executable, str(ROOT / "examples" / "netlab.py"), *arguments]
    return subprocess.run(command, env={**os.environ, "TMPDIR": str(folder)}, capture_output=True, text=True, timeout=100)


def test_nothing_is_left_of_a_run_that_ends_well(tmp_path: Path) -> None:
    done = netlab(tmp_path, "--rate", "none", "--", "sh", "-c", "echo rank $RANK")
    assert done.returncode == 0, done.stderr
    assert "rank 0" in done.stdout
    assert not list(tmp_path.iterdir())


def test_the_output_of_a_run_that_fails_is_kept_and_named(tmp_path: Path) -> None:
    done = netlab(tmp_path, "--rate", "none", "--", "sh", "-c", "echo rank $RANK; exit $RANK")
    assert done.returncode == 1
    (folder,) = tmp_path.iterdir()
    assert f"the other ranks' output is in {folder}" in done.stderr
    assert (folder / "rank1.log").read_text() == "rank 1\n"


def test_output_that_was_asked_for_is_kept(tmp_path: Path) -> None:
    done = netlab(tmp_path, "--rate", "none", "--logs", str(tmp_path / "logs"), "--", "sh", "-c", "echo rank $RANK")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "logs" / "rank1.log").read_text() == "rank 1\n"


def test_a_rate_that_tc_does_not_know_is_told_without_a_traceback(tmp_path: Path) -> None:
    done = netlab(tmp_path, "--rate", "nonsense", "--", "true")
    assert done.returncode == 2
    assert 'illegal value for "rate": "nonsense"' in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
