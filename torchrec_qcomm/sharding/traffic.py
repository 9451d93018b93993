"""Counting what is given to the collectives, while a ``with`` block lasts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from torchrec_qcomm.errors import WireError, describe
from torchrec_qcomm.wire import Flow, Side, Traffic


class TrafficMeter:
    """What this rank sent since the meter was attached or reset."""

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

    def count(
        self, collective: str, direction: str, ranks: Sequence[int], source: int, side: Side, buffer: torch.Tensor
    ) -> None:
        """Add one launch. The tables' bytes are the plan's; that they sum to what is really sent is checked here.

        Raises:
            WireError: the buffer has another size than the plan says.
        """
        planned = sum(cell.wire_bytes for cells in side.cells for cell in cells.values())
        if planned != buffer.numel() * buffer.element_size():
            raise WireError(
                describe(
                    f"{direction} {collective}", "buffer is not what was planned", got=buffer.numel(), allowed=str(planned)
                )
            )
        for destination, cells in zip(ranks, side.cells, strict=True):
            for table, cell in cells.items():
                self._traffic.add(Flow(collective, direction, table, source, destination), cell)


class Meters:
    """The meters attached to a sharded module; shared by its output dists. Empty costs one truth test a launch."""

    def __init__(self) -> None:
        self.active: list[TrafficMeter] = []


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
    found = [meters for module in model.modules() if isinstance(meters := getattr(module, "qcomm_meters", None), Meters)]
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
    for meters in found:
        meters.active.append(meter)
    try:
        yield meter
    finally:
        for meters in found:
            meters.active = [other for other in meters.active if other is not meter]
