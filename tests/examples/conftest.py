from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.examples.interpreters import Interpreters

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))  # where `python examples/dlrm.py` finds dlrm_lib

Launch = Callable[..., subprocess.CompletedProcess]


@pytest.fixture(scope="session")
def interpreters() -> Iterator[Interpreters]:
    """Processes that need not import TorchRec again."""
    found = Interpreters()
    yield found
    found.close()


@pytest.fixture(scope="session")
def launch(interpreters: Interpreters) -> Launch:
    """``launch(script, *arguments, ranks=2)`` beside what torchrun sets; ``ranks=None`` without it."""

    def run(script: Path | str, *arguments: object, ranks: int | None = 2) -> subprocess.CompletedProcess:
        done = interpreters.run([script, *arguments], ROOT, ranks=ranks, timeout=150)
        code = next((each.returncode for each in done if each.returncode), 0)
        out, err = "".join(each.stdout for each in done), "".join(each.stderr for each in done)
        return subprocess.CompletedProcess(done[0].args, code, out, err)

    return run


@pytest.fixture(scope="session")
def torchrun() -> Launch:
    """``torchrun(script, *arguments)`` as users start it, on two ranks. Killed with its ranks on a timeout."""

    def run(script: Path | str, *arguments: object, timeout: float = 150) -> subprocess.CompletedProcess:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
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
