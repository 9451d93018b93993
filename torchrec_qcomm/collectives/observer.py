"""What is told to whoever watches an exchange: a traffic meter, or a monitor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

from torchrec_qcomm.wire import Side


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """Bytes that are about to be given to a collective.

    Attributes:
        collective: ``all_to_all``.
        direction: ``forward`` or ``backward``.
        group: the process group; the splits of ``side`` are in its rank order.
        side: the layout of values and bytes.
        values: what was encoded: ``side.shape`` of ``side.dtype``. Not to be written to.
        buffer: what is sent: ``uint8 [side.nbytes]``. Not to be written to.
    """

    collective: str
    direction: str
    group: dist.ProcessGroup
    side: Side
    values: torch.Tensor
    buffer: torch.Tensor


class Observer(Protocol):
    """Watches exchanges."""

    def launched(self, launch: Launch) -> None:
        """Called at every launch, before the collective gets the bytes."""
        ...


class Observers:
    """Those who watch now; shared by all exchanges of a sharded module. With nobody there, a launch costs one truth test."""

    def __init__(self) -> None:
        self.active: list[Observer] = []

    @contextmanager
    def attached(self, observer: Observer) -> Iterator[None]:
        """Tell ``observer`` of launches until the block ends."""
        self.active.append(observer)
        try:
            yield
        finally:
            self.active = [other for other in self.active if other is not observer]
