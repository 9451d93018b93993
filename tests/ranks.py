"""A pool of spawned processes that play the ranks of real gloo process groups.

Processes are started once a test session, since importing TorchRec takes seconds; every task gets a fresh process group. A
task that fails on any rank, or does not end in time, fails with the traceback of every rank, and its processes are replaced.
"""

from __future__ import annotations

import faulthandler
import multiprocessing as mp
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist

_GROUP_TIMEOUT = timedelta(seconds=60)


def _serve(connection: Connection, stacks: str) -> None:
    torch.set_num_threads(1)
    with open(stacks, "w") as file:
        while True:
            function, rank, world, backend, rendezvous, env, args, seconds = connection.recv()
            before = dict(os.environ)
            os.environ.update(env, RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
            file.truncate(0)
            if torchrec := sys.modules.get("torchrec.distributed.collective_utils"):
                # It asks all ranks for a setting, once a process: those that were asked in another task would not join in.
                torchrec._INITIALIZED = False
            # Where a rank hangs is written down before the parent gives up on it.
            faulthandler.dump_traceback_later(max(seconds - 5, 1), file=file)
            try:
                dist.init_process_group(backend, f"file://{rendezvous}", rank=rank, world_size=world, timeout=_GROUP_TIMEOUT)
                if backend == "gloo":
                    # A rank with nothing to do would leave while others still connect to it.
                    dist.barrier()
                try:
                    answer = (True, function(rank, world, *args))
                finally:
                    dist.destroy_process_group()
            except BaseException:
                answer = (False, traceback.format_exc())
            faulthandler.cancel_dump_traceback_later()
            os.environ.clear()
            os.environ.update(before)
            connection.send(answer)


class RankPool:
    """Runs ``function(rank, world, *args)`` on ``world`` ranks at once."""

    def __init__(self) -> None:
        self._context = mp.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._workers: list[tuple[Any, Connection, Path]] = []
        self._tasks = 0

    def run(
        self,
        world: int,
        function: Callable[..., Any],
        *args: Any,
        seconds: float = 120,
        env: dict[str, str] | None = None,
        backend: str = "gloo",
    ) -> list[Any]:
        """Return what the function returned on each rank.

        Args:
            world: number of ranks.
            function: defined in a module that the processes can import.
            *args: picklable.
            seconds: after that the processes are killed and the task fails.
            env: set in every rank; ``LOCAL_WORLD_SIZE`` is the world by default.
            backend: of the process group.
        """
        self._tasks += 1
        while len(self._workers) < world:
            self._start()
        rendezvous = os.path.join(self._folder.name, f"task{self._tasks}")
        env = {"LOCAL_WORLD_SIZE": str(world), **(env or {})}
        workers = self._workers[:world]
        for rank, (_, connection, _) in enumerate(workers):
            connection.send((function, rank, world, backend, rendezvous, env, args, seconds))
        answers = self._collect(workers, monotonic() + seconds)
        if all(answer is not None and answer[0] for answer in answers):
            return [answer[1] for answer in answers if answer is not None]
        reports = []
        for rank, (answer, (process, _, stacks)) in enumerate(zip(answers, workers, strict=True)):
            if answer is None:
                state = "is still running" if process.is_alive() else f"died with exit code {process.exitcode}"
                reports.append(f"--- rank {rank} {state}\n{stacks.read_text()}")
            else:
                reports.append(f"--- rank {rank} {'returned' if answer[0] else 'raised'}\n{'' if answer[0] else answer[1]}")
        self.close()
        raise AssertionError(f"{function.__name__} failed on {world} ranks\n" + "\n".join(reports))

    def close(self) -> None:
        """Kill all processes; the next task starts new ones."""
        for process, connection, _ in self._workers:
            process.kill()
            process.join()
            connection.close()
        self._workers = []

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        stacks = Path(self._folder.name) / f"stacks{self._tasks}-{len(self._workers)}"
        process = self._context.Process(target=_serve, args=(theirs, str(stacks)), daemon=True)
        process.start()
        theirs.close()
        self._workers.append((process, ours, stacks))

    @staticmethod
    def _collect(workers: list[tuple[Any, Connection, Path]], deadline: float) -> list[tuple[bool, Any] | None]:
        answers: list[tuple[bool, Any] | None] = [None] * len(workers)
        pending = {connection: i for i, (_, connection, _) in enumerate(workers)}
        while pending and (left := deadline - monotonic()) > 0:
            for connection in wait(list(pending), timeout=left):
                i = pending.pop(connection)  # type: ignore[arg-type]
                try:
                    answers[i] = connection.recv()  # type: ignore[union-attr]
                except (EOFError, ConnectionError):
                    # The process died. The others may wait for it for ever, so they get a moment only.
                    deadline = min(deadline, monotonic() + 10)
            if any(answer is not None and not answer[0] for answer in answers):
                deadline = min(deadline, monotonic() + 10)
        return answers
