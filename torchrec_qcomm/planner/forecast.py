"""What a step of a job will send: per-rank totals, a matrix of hosts, and questions that are answered when they are asked.

Bytes are wire bytes unless something else is said: codes, scales and headers, what a collective is given. Numbers are FP64,
since expected numbers of ids need not be whole; pooled bytes are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from torchrec_qcomm.codecs import CodecSpec
from torchrec_qcomm.planner.job import Job, PlannedTable
from torchrec_qcomm.policy import Direction

MATRIX_RANKS = 512
"""Ranks up to which there is a matrix of rank pairs."""


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeForecast:
    """One collective of a step in one direction, at all ranks: of one output dist, and one hop of it.

    With 2D parallelism all sharding groups together, which exchange at the same time.

    Attributes:
        module: path of the collection.
        sharding_type: of its tables.
        hop: 0, or 1 for what goes across hosts after it was summed inside.
        direction: forward or backward.
        sent: ``[world, reach]`` bytes given to the collective.
        received: ``[world, reach]`` bytes taken from it.
        hosts: ``[hosts, hosts]`` bytes by source and destination host; a rank's share with itself included.
        encoded: for each codec, ``[world]`` values that a rank encodes.
        decoded: likewise.
        tables: names of the tables that take part.
    """

    module: str
    sharding_type: str
    hop: int
    direction: Direction
    sent: np.ndarray
    received: np.ndarray
    hosts: np.ndarray
    encoded: Mapping[CodecSpec, np.ndarray]
    decoded: Mapping[CodecSpec, np.ndarray]
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TableForecast:
    """One table, over all ranks and hops.

    Attributes:
        planned: the table.
        wire: for each direction, ``[reach]`` bytes.
        values: for each direction, ``[reach]`` numbers of values; times 4, its bytes as FP32.
        lookups: ids looked up in a step.
        id_bytes: ``[reach]`` bytes of its ids, lengths and weights.
    """

    planned: PlannedTable
    wire: Mapping[Direction, np.ndarray]
    values: Mapping[Direction, np.ndarray]
    lookups: float
    id_bytes: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """A step of a job.

    Attributes:
        job: what it is made from.
        exchanges: the quantized collectives, in the order in which a step has them.
        tables: in the order of the job.
        ids_sent, ids_received: ``[world, reach]`` bytes of the exchange of ids (ids, lengths, weights), which no codec touches.
        lookups: ``[world]`` ids that a rank looks up.
        rows: ``[world]`` rows that a rank owns.
        memory: ``[world]`` bytes of the weights that a rank owns.
        dense_bytes: bytes of the gradients of data-parallel tables: the tensors that every rank gives to an all-reduce.
        sync_bytes: ``[world]`` with 2D parallelism, bytes of the weights that a rank gives to the all-reduce between replicas,
            each time; else zeros.
    """

    job: Job
    exchanges: tuple[ExchangeForecast, ...]
    tables: tuple[TableForecast, ...]
    ids_sent: np.ndarray
    ids_received: np.ndarray
    lookups: np.ndarray
    rows: np.ndarray
    memory: np.ndarray
    dense_bytes: float
    sync_bytes: np.ndarray

    def sent(self, directions: Iterable[Direction] = Direction) -> np.ndarray:
        """``[world, reach]`` bytes that each rank sends."""
        wanted = set(directions)
        zero = np.zeros_like(self.ids_sent)
        return sum((exchange.sent for exchange in self.exchanges if exchange.direction in wanted), zero)

    def received(self, directions: Iterable[Direction] = Direction) -> np.ndarray:
        """``[world, reach]`` bytes that each rank receives."""
        wanted = set(directions)
        zero = np.zeros_like(self.ids_sent)
        return sum((exchange.received for exchange in self.exchanges if exchange.direction in wanted), zero)

    def hosts(self, directions: Iterable[Direction] = Direction) -> np.ndarray:
        """``[hosts, hosts]`` bytes by source and destination host."""
        wanted = set(directions)
        zero = np.zeros((self.job.machines.hosts,) * 2)
        return sum((exchange.hosts for exchange in self.exchanges if exchange.direction in wanted), zero)
