"""Bytes by source, destination, table, direction and collective: what is measured, and what a planner predicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from torchrec_qcomm.errors import WireError, describe

DIRECTIONS = ("forward", "backward")


class Flow(NamedTuple):
    """Where bytes went.

    Attributes:
        collective: ``all_to_all``.
        direction: ``forward`` (lookups to samples) or ``backward`` (gradients to owners).
        table: the table's name.
        source: global rank that sends.
        destination: global rank that receives; a rank's share with itself is a flow like any other.
    """

    collective: str
    direction: str
    table: str
    source: int
    destination: int


@dataclass(frozen=True, slots=True)
class Cell:
    """How much went there.

    Attributes:
        values: number of embedding or gradient values.
        wire_bytes: bytes given to the collective for them: codes, scales and padding.
    """

    values: int = 0
    wire_bytes: int = 0

    def __add__(self, other: Cell) -> Cell:
        return Cell(self.values + other.values, self.wire_bytes + other.wire_bytes)

    @property
    def fp32_bytes(self) -> int:
        """Bytes of the same values as plain FP32."""
        return 4 * self.values


class Traffic:
    """A sum of flows. Questions leave out a rank's traffic with itself unless ``include_self`` is set.

    >>> traffic = Traffic({Flow("all_to_all", "forward", "t", 0, 1): Cell(values=8, wire_bytes=16)})
    >>> traffic.wire_bytes(), traffic.fp32_bytes()
    (16, 32)
    >>> traffic.matrix(world_size=2)
    [[0, 16], [0, 0]]
    """

    def __init__(self, cells: Mapping[Flow, Cell] | Iterable[tuple[Flow, Cell]] = ()) -> None:
        self._cells: dict[Flow, Cell] = {}
        for flow, cell in cells.items() if isinstance(cells, Mapping) else cells:
            self.add(flow, cell)

    def add(self, flow: Flow, cell: Cell) -> None:
        """Add ``cell`` to what is already counted for ``flow``."""
        self._cells[flow] = self._cells.get(flow, Cell()) + cell

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic([*self._cells.items(), *other._cells.items()])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Traffic) and self._cells == other._cells

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Traffic({self.wire_bytes()} wire bytes for {self.fp32_bytes()} FP32 bytes, self-traffic left out)"

    def flows(
        self,
        *,
        direction: str | None = None,
        table: str | None = None,
        collective: str | None = None,
        include_self: bool = False,
    ) -> Iterator[tuple[Flow, Cell]]:
        """The flows that match, sorted.

        Raises:
            WireError: there is no such direction.
        """
        if direction not in (None, *DIRECTIONS):
            raise WireError(describe("traffic", "no such direction", got=direction, allowed=DIRECTIONS))
        for flow, cell in sorted(self._cells.items()):
            if (
                direction in (None, flow.direction)
                and table in (None, flow.table)
                and collective in (None, flow.collective)
                and (include_self or flow.source != flow.destination)
            ):
                yield flow, cell

    def total(self, **which: Any) -> Cell:
        """The sum over the flows that match; ``which`` as in `flows`."""
        return sum((cell for _, cell in self.flows(**which)), Cell())

    def wire_bytes(self, **which: Any) -> int:
        """Bytes given to collectives; ``which`` as in `flows`."""
        return self.total(**which).wire_bytes

    def fp32_bytes(self, **which: Any) -> int:
        """What the same values would take as FP32; ``which`` as in `flows`."""
        return self.total(**which).fp32_bytes

    def by_table(self, *, include_self: bool = False) -> dict[tuple[str, str], Cell]:
        """``{(table, direction): Cell}``, sorted."""
        sums: dict[tuple[str, str], Cell] = {}
        for flow, cell in self.flows(include_self=include_self):
            key = (flow.table, flow.direction)
            sums[key] = sums.get(key, Cell()) + cell
        return dict(sorted(sums.items()))

    def matrix(self, world_size: int, **which: Any) -> list[list[int]]:
        """Wire bytes as ``[source][destination]``. The diagonal is filled only with ``include_self=True``.

        Raises:
            WireError: a rank does not fit into ``world_size``.
        """
        cells = [[0] * world_size for _ in range(world_size)]
        for flow, cell in self.flows(**which):
            if (rank := max(flow.source, flow.destination)) >= world_size:
                raise WireError(describe("traffic, matrix: world_size", "too small", got=world_size, allowed=f"above {rank}"))
            cells[flow.source][flow.destination] += cell.wire_bytes
        return cells

    def to_dict(self) -> list[dict[str, Any]]:
        """One JSON-able record a flow, self-traffic included."""
        return [{**flow._asdict(), **asdict(cell)} for flow, cell in self.flows(include_self=True)]
