"""A pool of spawned processes that play the ranks of real gloo process groups.

Processes are started once a test session, since importing TorchRec takes seconds, and tasks of as many ranks, one behind the
other, share a process group, since ranks need a while to find each other. Nothing of a task is there in the next: what it put
into the store, the groups it made, its environment. A task that fails on any rank, or does not end in time, fails with the
traceback of every rank, and its processes are replaced.
"""

from __future__ import annotations

import faulthandler
import multiprocessing as mp
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

_GROUP_TIMEOUT = timedelta(seconds=60)


@dataclass(frozen=True)
class _Task:
    """What a rank is told: a function with its arguments, and the process group to run it in.

    Attributes:
        number: of the task; what it puts into the store of the group stands under it.
        rendezvous: a file that belongs to one process group. The group of the task before is used again if it is the same.
        seconds: until the parent gives up.
    """

    number: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    rank: int
    world: int
    backend: str
    rendezvous: str
    env: dict[str, str]
    seconds: float


class _Group:
    """The default process group of this process."""

    def __init__(self) -> None:
        self._rendezvous: str | None = None

    def join(self, task: _Task) -> None:
        """Be in the group of the task, which is as good as a new one."""
        if self._rendezvous != task.rendezvous:
            self.leave()
            dist.init_process_group(
                task.backend, f"file://{task.rendezvous}", rank=task.rank, world_size=task.world, timeout=_GROUP_TIMEOUT
            )
            self._rendezvous, self._names = task.rendezvous, c10d._world.group_count
            self._backend, self._store = c10d._world.pg_map[dist.group.WORLD]
        c10d._world.group_count = self._names  # the next group that is made has the name that it has after a new start
        c10d._world.pg_map[dist.group.WORLD] = self._backend, dist.PrefixStore(f"task{task.number}", self._store)
        if task.backend == "gloo":
            # A rank with nothing to do would leave while others still connect to it.
            dist.barrier()

    def tidy(self) -> bool:
        """Destroy all groups but the default one, when all ranks are done; whether that one still works."""
        try:
            dist.barrier()
        except RuntimeError:  # the task was about a collective that fails
            self.leave()
            return False
        for group in list(c10d._world.pg_map):
            if group is not dist.group.WORLD:
                dist.destroy_process_group(group)
        return True

    def leave(self) -> None:
        """Destroy all groups."""
        self._rendezvous = None
        if dist.is_initialized():
            dist.destroy_process_group()


def _serve(connection: Connection, stacks: str) -> None:
    torch.set_num_threads(1)
    group = _Group()
    with open(stacks, "w") as file:
        while True:
            task: _Task = connection.recv()
            before = dict(os.environ)
            os.environ.update(task.env, RANK=str(task.rank), WORLD_SIZE=str(task.world), LOCAL_RANK=str(task.rank))
            file.truncate(0)
            if torchrec := sys.modules.get("torchrec.distributed.collective_utils"):
                # It asks all ranks for a setting, once a process: those that were asked in another task would not join in.
                torchrec._INITIALIZED = False
            if torchrec := sys.modules.get("torchrec.distributed.comm"):
                # It keeps the groups of the first host layout that a process saw.
                torchrec._INTRA_PG = torchrec._CROSS_PG = torchrec._INTRA_PG_2D = torchrec._CROSS_PG_2D = None
            # Where a rank hangs is written down before the parent gives up on it.
            faulthandler.dump_traceback_later(max(task.seconds - 5, 1), file=file)
            kept = False
            try:
                try:
                    group.join(task)
                    answer = (True, task.function(task.rank, task.world, *task.args))
                    kept = task.backend == "gloo" and group.tidy()
                finally:
                    if not kept:
                        group.leave()
            except BaseException:
                answer = (False, traceback.format_exc())
            faulthandler.cancel_dump_traceback_later()
            os.environ.clear()
            os.environ.update(before)
            connection.send((*answer, kept))


class RankPool:
    """Runs ``function(rank, world, *args)`` on ``world`` ranks at once."""

    def __init__(self) -> None:
        self._context = mp.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._workers: list[tuple[Any, Connection, Path]] = []
        self._tasks = 0
        self._group: tuple[int, str, str] | None = None

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
        if self._group is None or self._group[:2] != (world, backend):
            self._group = world, backend, os.path.join(self._folder.name, f"group{self._tasks}")
        env = {"LOCAL_WORLD_SIZE": str(world), **(env or {})}
        workers = self._workers[:world]
        for rank, (_, connection, _) in enumerate(workers):
            connection.send(_Task(self._tasks, function, args, rank, world, *self._group[1:], env, seconds))
        answers = self._collect(workers, monotonic() + seconds)
        if all(answer is not None and answer[0] for answer in answers):
            if not all(answer is not None and answer[2] for answer in answers):
                self._group = None
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
        self._workers, self._group = [], None

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        stacks = Path(self._folder.name) / f"stacks{self._tasks}-{len(self._workers)}"
        process = self._context.Process(target=_serve, args=(theirs, str(stacks)), daemon=True)
        process.start()
        theirs.close()
        self._workers.append((process, ours, stacks))

    @staticmethod
    def _collect(workers: list[tuple[Any, Connection, Path]], deadline: float) -> list[tuple[bool, Any, bool] | None]:
        answers: list[tuple[bool, Any, bool] | None] = [None] * len(workers)
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
