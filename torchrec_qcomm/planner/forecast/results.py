"""What a step of a job will send: totals of each rank, a matrix of hosts, and matrices of ranks that are made when asked for.

Bytes are wire bytes unless something else is said: the codes, scales and headers that a collective is given. Numbers are FP64,
since expected numbers of ids need not be whole. Bytes of pooled tables are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from torchrec_qcomm.codecs import CodecSpec
from torchrec_qcomm.errors import PlannerError, describe
from torchrec_qcomm.planner.forecast import rank_pairs
from torchrec_qcomm.planner.forecast.counts import Counts
from torchrec_qcomm.planner.forecast.placement import MATRIX_RANKS
from torchrec_qcomm.planner.job import Job, PlannedTable
from torchrec_qcomm.policy import Direction
from torchrec_qcomm.wire import Traffic

__all__ = ["MATRIX_RANKS", "ExchangeForecast", "Forecast", "TableForecast"]


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeForecast:
    """One collective of a step at all ranks: one hop of an output dist, in one direction.

    With 2D parallelism, it is that of all sharding groups together, which exchange at the same time.

    Attributes:
        module: path of the collection.
        sharding_type: of its tables.
        hop: 0; 1 for the exchange across hosts that follows a sum inside them.
        direction: forward or backward.
        sent: ``[world, reach]`` bytes given to the collective.
        received: ``[world, reach]`` bytes taken from it.
        hosts: ``[hosts, hosts]`` bytes by source and destination host; a rank's share with itself included. It is empty if
            it is not known which ranks share a host, and there are more than `MATRIX_RANKS`.
        encoded: for each codec, ``[world]`` values that a rank encodes. Where it sends the same to several ranks, these count
            once.
        decoded: for each codec, ``[world]`` values that a rank decodes.
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
        values: for each direction, ``[reach]`` numbers of values; 4 times as many bytes, as FP32.
        lookups: ids looked up in a step.
        id_bytes: ``[reach]`` bytes of its ids, lengths and weights.

    Values and bytes are summed over both hops where there are two.
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
        dense_bytes: bytes of the gradients of data-parallel tables, which every rank gives to an all-reduce in each step. These
            are whole tables, whatever ids were looked up. How many bytes an all-reduce makes of them is another question.
        sync_bytes: ``[world]`` with 2D parallelism, bytes of the weights that a rank gives to each all-reduce between replicas:
            its shards; else zeros. TorchRec's ``sync()`` also sends the optimizer's state unless it is told not to. That is not
            counted.
        counts: of the batches that the forecast is made for, if it is made for any.
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
    counts: Counts | None = None

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
        """``[hosts, hosts]`` bytes by source and destination host; where hosts are not known, every rank is one.

        Raises:
            PlannerError: hosts are not known, and there are more than `MATRIX_RANKS` ranks.
        """
        wanted, machines = set(directions), self.job.machines
        if machines.devices_per_host is None and machines.world_size > MATRIX_RANKS:
            wrong = f"it is not known how many ranks a host has, and there are more than {MATRIX_RANKS}"
            raise PlannerError(describe("forecast: hosts", wrong, got=None, allowed="machines with devices_per_host"))
        zero = np.zeros((machines.hosts,) * 2)
        return sum((exchange.hosts for exchange in self.exchanges if exchange.direction in wanted), zero)

    def table(self, name: str, module: str | None = None) -> TableForecast:
        """The forecast of a table.

        Args:
            name: of the table.
            module: path of its collection; needed where several have a table of that name.

        Raises:
            PlannerError: there is no such table, or more than one.
        """
        named = [each for each in self.tables if each.planned.table.name == name]
        found = [each for each in named if module in (None, each.planned.module)]
        if len(found) == 1:
            return found[0]
        if not named:
            names = [each.planned.table.name for each in self.tables]
            raise PlannerError(describe("forecast: table", "no such table", got=name, allowed=names))
        modules = [each.planned.module for each in named]
        wrong = "no such collection with it" if not found else "several collections have one"
        raise PlannerError(describe(f"forecast: table {name!r}", wrong, got=module, allowed=modules))

    def rank_matrix(self, directions: Iterable[Direction] = Direction) -> np.ndarray:
        """``[world, world]`` bytes by source and destination rank, a rank's share with itself included.

        Raises:
            PlannerError: there are more than `MATRIX_RANKS` ranks.
        """
        return rank_pairs.matrix(self.job, self.counts, self.job.tables, directions)

    def table_matrix(self, name: str, directions: Iterable[Direction] = Direction, module: str | None = None) -> np.ndarray:
        """The same of one table; ``module`` as in `table`."""
        planned = self.table(name, module).planned
        return rank_pairs.matrix(self.job, self.counts, [planned], directions)

    def traffic(self) -> Traffic:
        """What the counters of a run show (``measure_traffic(...).gather()``), flow by flow.

        Raises:
            PlannerError: there are more than `MATRIX_RANKS` ranks, or the numbers are expected ones and not whole.
        """
        return rank_pairs.traffic(rank_pairs.pairs_of(self.job, self.counts, self.job.tables, Direction))
