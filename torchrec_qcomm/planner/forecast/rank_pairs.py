"""Bytes from rank to rank. They are worked out when somebody asks, and up to `MATRIX_RANKS` ranks only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from torchrec_qcomm.errors import PlannerError, describe
from torchrec_qcomm.planner.forecast.counts import Counts
from torchrec_qcomm.planner.forecast.exchange_sums import add_up, wire_bytes
from torchrec_qcomm.planner.forecast.placement import MATRIX_RANKS, Peers, Placement
from torchrec_qcomm.planner.forecast.row_sizes import LinkSizes, RowSizes
from torchrec_qcomm.planner.forecast.table_hops import TableHop, hops_of
from torchrec_qcomm.planner.job import LINK_INDEX, LINKS, Job, PlannedTable
from torchrec_qcomm.policy import Direction
from torchrec_qcomm.wire import Cell, Flow, Traffic


class Pairs(NamedTuple):
    """What one table exchanges in one hop and direction. Arrays have an entry for each pair of ranks."""

    planned: PlannedTable
    direction: Direction
    source: np.ndarray
    destination: np.ndarray
    rows: np.ndarray
    values: np.ndarray
    nbytes: np.ndarray


def pairs_of(
    job: Job, counts: Counts | None, tables: Iterable[PlannedTable], directions: Iterable[Direction]
) -> Iterator[Pairs]:
    """All pairs of an owner and a peer, for each table, hop and direction; also those that move no row.

    Raises:
        PlannerError: there are too many ranks.
    """
    _check_ranks(job)
    placement, row_sizes, wanted = Placement(job), RowSizes(job), sorted(set(directions), reverse=True)
    for planned in tables:
        for hop in hops_of(planned, placement, counts):
            reach = hop.peers.reach(hop.owners)
            rows = hop.pairs(reach)
            at, sample = np.nonzero(reach >= 0)
            owner = hop.owners[at]
            values = (rows * hop.dims[:, None])[at, sample]
            number = rows[at, sample]
            for direction in wanted:
                nbytes = wire_bytes(hop, row_sizes.of(hop, direction), reach, rows)[at, sample]
                source, destination = (owner, sample) if direction == Direction.FORWARD else (sample, owner)
                yield Pairs(planned, direction, source, destination, number, values, nbytes)


def matrix(job: Job, counts: Counts | None, tables: Iterable[PlannedTable], directions: Iterable[Direction]) -> np.ndarray:
    """``[world, world]`` bytes by source and destination rank: the sums of `pairs_of`, made faster.

    Raises:
        PlannerError: there are too many ranks.
    """
    _check_ranks(job)
    placement, row_sizes, wanted = Placement(job), RowSizes(job), set(directions)
    sums = {direction: np.zeros((job.machines.world_size,) * 2) for direction in Direction}  # [owner, sample]
    expected: dict[Peers, _Owners] = {}
    for planned in tables:
        for hop in hops_of(planned, placement, counts):
            if counts is None:
                # Hops with the same peers have one unit. So owners are added up, and multiplied with their peers at the end.
                owners = expected.setdefault(hop.peers, _Owners(hop.unit))
                for direction in wanted:
                    owners.add(hop, row_sizes.of(hop, direction), direction)
                continue
            reach = hop.peers.reach(hop.owners)
            rows = hop.pairs(reach)
            for direction in wanted:
                add_up(sums[direction], hop, wire_bytes(hop, row_sizes.of(hop, direction), reach, rows))
    for peers, owners in expected.items():
        reach = peers.reach(np.arange(len(peers.label)))
        for direction in wanted:
            sums[direction] += owners.pairs(reach, direction)
    return sums[Direction.FORWARD] + sums[Direction.BACKWARD].T


class _Owners:
    """``[world, link]`` bytes of owners in each direction: of rows for one unit, and of range headers."""

    def __init__(self, unit: np.ndarray) -> None:
        self._unit = unit
        shape = len(Direction), len(unit), len(LINKS)
        self._bytes, self._headers = (dict(zip(Direction, np.zeros(shape), strict=True)) for _ in range(2))

    def add(self, hop: TableHop, sizes: LinkSizes, direction: Direction) -> None:
        add_up(self._bytes[direction], hop, hop.scale[:, None] * sizes.row_bytes)
        if (headers := sizes.range_headers).any():
            add_up(self._headers[direction], hop, (hop.first & (hop.scale > 0))[:, None] * headers)

    def pairs(self, reach: np.ndarray, direction: Direction) -> np.ndarray:
        """``[world, world]`` by owner and sample."""
        link = LINK_INDEX[reach]
        each, once = (np.take_along_axis(kept[direction], link, axis=1) for kept in (self._bytes, self._headers))
        return np.where(reach >= 0, each * self._unit + once * (self._unit > 0), 0)


def _check_ranks(job: Job) -> None:
    if job.machines.world_size > MATRIX_RANKS:
        wrong, allowed = "too many for a matrix of ranks", f"at most {MATRIX_RANKS}; Forecast.hosts() has a matrix of hosts"
        raise PlannerError(describe("forecast: ranks", wrong, got=job.machines.world_size, allowed=allowed))


def traffic(pairs: Iterable[Pairs]) -> Traffic:
    """The flows as the counters of a run have them.

    Raises:
        PlannerError: numbers are expected ones, and not whole.
    """
    total = Traffic()
    for each in pairs:
        fractions = each.rows[~np.isclose(each.rows, np.rint(each.rows), rtol=1e-9, atol=1e-9)]
        if len(fractions):
            wrong = f"table {each.planned.table.name!r} moves a fraction of a row on average, which no counter would show"
            allowed = "whole numbers of ids for each pair of ranks: predict(job, counts), or rank_matrix()"
            raise PlannerError(describe("forecast: traffic", wrong, got=float(fractions[0]), allowed=allowed))
        for source, destination, values, nbytes in zip(
            each.source.tolist(), each.destination.tolist(), each.values.tolist(), each.nbytes.tolist(), strict=True
        ):
            flow = Flow("all_to_all", str(each.direction), each.planned.table.name, source, destination)
            total.add(flow, Cell(round(values), round(nbytes)))
    return total
