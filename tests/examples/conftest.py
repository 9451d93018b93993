from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))  # where `python examples/dlrm.py` finds dlrm_lib

Launch = Callable[..., subprocess.CompletedProcess]


@pytest.fixture(scope="session")
def launch() -> Launch:
    """``launch(script, *arguments, ranks=2)`` under torchrun; ``ranks=None`` without it. Killed with its ranks on a timeout."""

    def run(script: Path | str, *arguments: object, ranks: int | None = 2, timeout: float = 150) -> subprocess.CompletedProcess:
        launcher = [] if ranks is None else ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
        process = subprocess.Popen(
            [sys.executable, *launcher, str(script), *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            pytest.fail(f"{script} took more than {timeout} s\n{out}\n{err}")
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return run
