"""The process group of a run: gloo on CPU, NCCL if there are CUDA devices."""

from __future__ import annotations

import gc
import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class Ranks:
    """Where this process stands among the ranks of the run.

    Attributes:
        rank: global rank.
        world_size: number of ranks.
        device: that this rank computes on.
        group: all ranks.
    """

    rank: int
    world_size: int
    device: torch.device
    group: dist.ProcessGroup

    def say(self, *text: object) -> None:
        """Print on rank 0."""
        if self.rank == 0:
            print(*text, flush=True)

    def gather(self, value: object) -> list[object]:
        """The values of all ranks, in the order of ranks; every rank gets them."""
        values: list[object] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values


@contextmanager
def start_ranks() -> Iterator[Ranks]:
    """Join the process group that ``torchrun`` describes in the environment; without ``torchrun``, a group of one."""
    if "RANK" not in os.environ:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        os.environ.update(alone, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    assert dist.group.WORLD is not None
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), device, dist.group.WORLD)
    finally:
        # Modules that still exist would keep the group alive, and then gloo may abort the process at its exit.
        gc.collect()
        dist.destroy_process_group()


def quiet() -> None:
    """Hide messages of TorchRec and PyTorch about their own plans: a user of an example can do nothing about them."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    for chatty in ("torchrec", "torch.fx._symbolic_trace"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
