"""Interpreters that have imported TorchRec already and become scripts.

The import takes every rank of every script five seconds. Here a process for each rank does it once, and forks for each script;
the fork runs it as ``python script`` would: as ``__main__``, with its own arguments, environment, folder, output and exit code.
Ranks have processes of their own to be forked from, since ranks that hash texts alike would hide faults.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing as mp
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any

import pytest


def _nursery(connection: Connection) -> None:
    import torchrec.distributed.model_parallel
    import torchrec.distributed.planner  # noqa: F401

    gc.freeze()  # so that forks need not look at it, nor copy it
    while True:
        task = connection.recv()
        if not (pid := os.fork()):
            _become(*task)
        connection.send(pid)
        connection.send(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _become(command: list[str], folder: str, env: dict[str, str], out: str, err: str) -> None:
    """Run a script in the place of this process."""
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    for stream, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
    sys.argv, sys.path = command, [str(Path(command[0]).parent), *sys.path]
    code: Any = 0
    try:
        runpy.run_path(command[0], run_name="__main__")
    except SystemExit as end:
        code = end.code
        if not isinstance(code, int | None):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


class Interpreters:
    """Runs scripts on ranks that find each other as those of torchrun do."""

    def __init__(self) -> None:
        self._context = mp.get_context("spawn")
        self._nurseries: list[tuple[Any, Connection]] = []

    def run(
        self, command: Sequence[object], folder: Path, *, ranks: int | None, timeout: float, **env: str
    ) -> list[subprocess.CompletedProcess]:
        """What each rank printed, and its exit code.

        Args:
            command: a script and its arguments.
            folder: to run it in.
            ranks: how many; None for one process that is no rank.
            timeout: seconds after which all are killed and the test fails.
            **env: beside what this process has.
        """
        words = [str(part) for part in command]
        while len(self._nurseries) < (ranks or 1):
            self._start()
        running = self._nurseries[: ranks or 1]
        with tempfile.TemporaryDirectory() as output, socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
            free.close()
            files = [(f"{output}/out{rank}", f"{output}/err{rank}") for rank in range(len(running))]
            for rank, (_, connection) in enumerate(running):
                group = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                group |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
                mine = {**os.environ, "OMP_NUM_THREADS": "1", **(group if ranks else {}), **env}
                connection.send((words, str(folder), mine, *files[rank]))
            pids, deadline = [connection.recv() for _, connection in running], monotonic() + timeout
            codes = [
                connection.recv() if connection.poll(max(deadline - monotonic(), 0)) else None for _, connection in running
            ]
            for pid, code in zip(pids, codes, strict=True):
                if code is None:
                    os.kill(pid, signal.SIGKILL)
            for (_, connection), code in zip(running, codes, strict=True):
                if code is None:
                    connection.recv()
            said = [tuple(Path(file).read_text() for file in pair) for pair in files]
        if None in codes:
            pytest.fail(f"{words[0]} took more than {timeout} s: {codes}\n" + "\n".join(out + err for out, err in said))
        return [subprocess.CompletedProcess(words, code, out, err) for code, (out, err) in zip(codes, said, strict=True)]

    def close(self) -> None:
        """Kill all processes."""
        for process, connection in self._nurseries:
            process.kill()
            process.join()
            connection.close()

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_nursery, args=(theirs,), daemon=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OMP_NUM_THREADS", "1")
            process.start()
        theirs.close()
        self._nurseries.append((process, ours))
