"""Counting what is given to the collectives, while a ``with`` block lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch.distributed as dist
from torch import nn

from torchrec_qcomm.collectives import Launch, Observers
from torchrec_qcomm.errors import WireError, describe
from torchrec_qcomm.wire import Flow, Traffic


class TrafficMeter:
    """What this rank sent since the meter was attached or reset: an observer of exchanges."""

    def __init__(self) -> None:
        self._traffic = Traffic()

    def local(self) -> Traffic:
        """What this rank sent, its share with itself included."""
        return self._traffic + Traffic()

    def gather(self, group: dist.ProcessGroup | None = None) -> Traffic:
        """What all ranks of ``group`` (default: all ranks) sent. A collective call: every rank must make it."""
        if not dist.is_initialized() or dist.get_world_size(group) == 1:
            return self.local()
        everyone: list[Traffic | None] = [None] * dist.get_world_size(group)
        dist.all_gather_object(everyone, self._traffic, group=group)
        return sum((traffic for traffic in everyone if traffic is not None), Traffic())

    def reset(self) -> None:
        """Start again from nothing."""
        self._traffic = Traffic()

    def launched(self, launch: Launch) -> None:
        """Add one launch. The tables' bytes are the layout's; that they sum to what is really sent is checked here.

        Raises:
            WireError: the buffer has another size than the layout says.
        """
        direction, cells, buffer = launch.direction, launch.side.cells, launch.buffer
        laid_out = sum(cell.wire_bytes for by_table in cells for cell in by_table.values())
        if laid_out != buffer.numel() * buffer.element_size():
            where, wrong = f"{direction} {launch.collective}", "the buffer is not what the layout says"
            raise WireError(describe(where, wrong, got=buffer.numel(), allowed=str(laid_out)))
        ranks = dist.get_process_group_ranks(launch.group)
        source = ranks[launch.group.rank()]
        for destination, by_table in zip(ranks, cells, strict=True):
            for table, cell in by_table.items():
                self._traffic.add(Flow(launch.collective, direction, table, source, destination), cell)


@contextmanager
def measure_traffic(model: nn.Module) -> Iterator[TrafficMeter]:
    """Count the bytes that the quantized exchanges of ``model`` give to collectives.

    Args:
        model: a model whose collections were sharded with this package's sharders.

    Yields:
        The meter: ``local()``, ``gather(group)``, ``reset()``. It stays readable after the block.

    Raises:
        WireError: the model has no exchange of this package, so that there is nothing to count.
    """
    found = [each for module in model.modules() if isinstance(each := getattr(module, "qcomm_observers", None), Observers)]
    if not found:
        raise WireError(
            describe(
                "measure_traffic",
                "no module of the model was sharded with this package",
                got=type(model).__name__,
                allowed="a model sharded with get_sharders(config)",
            )
        )
    meter = TrafficMeter()
    with ExitStack() as stack:
        for observers in found:
            stack.enter_context(observers.attached(meter))
        yield meter
