"""How many bytes a row of each table takes on each link, in the codec that the policy gives it there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch

from torchrec_qcomm import codecs
from torchrec_qcomm.codecs import Codec, CodecSpec
from torchrec_qcomm.errors import CodecError, PlannerError, describe
from torchrec_qcomm.planner.forecast.table_hops import TableHop
from torchrec_qcomm.planner.job import LINKS, Job, PlannedTable
from torchrec_qcomm.policy import Direction, Link
from torchrec_qcomm.wire.sizes import range_header_bytes, rows_bytes


@dataclass(frozen=True, slots=True, eq=False)
class LinkSizes:
    """The sizes of one hop of a table in one direction, by link.

    Attributes:
        row_bytes: ``[owners, link]``: bytes of a row; ``[1, link]`` where all owners have rows of one dim.
        codecs: of each link.
    """

    row_bytes: np.ndarray
    codecs: tuple[Codec, ...]

    @property
    def range_headers(self) -> np.ndarray:
        """``[link]``: bytes of the range header, which travels once for a table and pair of ranks."""
        return np.array([range_header_bytes(codec, 1) for codec in self.codecs])


class RowSizes:
    """Answers how large the rows of a job's tables are.

    Args:
        job: the policy and the tables.

    Raises:
        PlannerError: the policy depends on the link and hosts are not known, or a codec cannot carry what a table sends.
    """

    def __init__(self, job: Job) -> None:
        self._resolved = job.resolved()
        self._codecs: dict[CodecSpec, Codec] = {}
        self._row_bytes: dict[tuple[CodecSpec, int, torch.dtype], int] = {}
        self._dtypes = {exchange: _promoted(tables) for exchange, tables in exchanges_of(job).items()}
        for planned in job.tables:
            if planned.kind.hops:
                self._check(planned, job.machines.devices_per_host)

    def of(self, hop: TableHop, direction: Direction) -> LinkSizes:
        """The sizes of a hop's rows."""
        planned = hop.planned
        dtype = self._dtypes[exchange_of(planned)]
        used = tuple(self._codec(planned, direction, link) for link in LINKS)
        dims = hop.dims
        if (dims == dims[0]).all():
            return LinkSizes(np.array([[self._bytes(codec, int(dims[0]), dtype) for codec in used]]), used)
        known, which = np.unique(dims, return_inverse=True)
        return LinkSizes(np.array([[self._bytes(codec, int(dim), dtype) for codec in used] for dim in known])[which], used)

    def _bytes(self, codec: Codec, dim: int, dtype: torch.dtype) -> int:
        key = (codec.spec, dim, dtype)
        if key not in self._row_bytes:
            self._row_bytes[key] = rows_bytes(codec, dim, 1, dtype)
        return self._row_bytes[key]

    def _codec(self, planned: PlannedTable, direction: Direction, link: Link) -> Codec:
        spec = self._resolved[planned.module].codec(planned.table.name, direction, link)
        if spec not in self._codecs:
            self._codecs[spec] = codecs.get(spec)
        return self._codecs[spec]

    def _check(self, planned: PlannedTable, devices_per_host: int | None) -> None:
        """Refuse what sharding the table would refuse, too."""
        name = planned.table.name
        for direction in Direction:
            used = {link: self._codec(planned, direction, link) for link in LINKS}
            if devices_per_host is None and used[Link.INTRA_HOST].spec != used[Link.INTER_HOST].spec:
                wrong = "its codec depends on the link, but it is not known how many ranks a host has"
                raise PlannerError(describe(f"table {name!r}", wrong, got=None, allowed="machines with devices_per_host"))
            for link, codec in used.items():
                try:
                    codec.check_payload(self._dtypes[exchange_of(planned)])
                except CodecError as error:
                    raise PlannerError(f"table {name!r}, {direction}, {link}: {error}") from error


def exchange_of(planned: PlannedTable) -> tuple[str, str]:
    """Which output dist a table is in: path of the collection, and sharding type."""
    return planned.module, planned.sharding_type


def exchanges_of(job: Job) -> dict[tuple[str, str], list[PlannedTable]]:
    """The tables of each output dist, in the order of the job."""
    found: dict[tuple[str, str], list[PlannedTable]] = {}
    for planned in job.tables:
        found.setdefault(exchange_of(planned), []).append(planned)
    return found


def _promoted(tables: Iterable[PlannedTable]) -> torch.dtype:
    """The dtype that all lookups of one output dist have."""
    return reduce(torch.promote_types, [planned.payload for planned in tables])
