"""What advisers look at, and how they ask what a change would do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from torchrec_qcomm.planner.findings.loads import Predict
from torchrec_qcomm.planner.findings.lookups import LookupProfile
from torchrec_qcomm.planner.findings.results import Load, Times
from torchrec_qcomm.planner.findings.speeds import Speeds
from torchrec_qcomm.planner.findings.timing import collective_ms, dense_ms, exchange_key, move_ms, sync_ms
from torchrec_qcomm.planner.forecast.results import ExchangeForecast, Forecast
from torchrec_qcomm.planner.job import Job, PlannedTable


@dataclass(frozen=True)
class AdvisedJob:
    """A job, what was found of it, and what would come of a change.

    Attributes:
        forecast, plain, times, loads: as in `Analysis`.
        speeds: of codecs.
        predict: forecasts a job.
        profile: counted lookups, or ``None``.
    """

    forecast: Forecast
    plain: Forecast
    times: Times
    loads: tuple[Load, ...]
    speeds: Speeds
    predict: Predict
    profile: LookupProfile | None = None

    @property
    def job(self) -> Job:
        """The job as it is."""
        return self.forecast.job

    @cached_property
    def step_ms(self) -> float:
        """What a change is compared with: all exchanges of a step, coding included."""
        return self.ms(self.forecast)

    @cached_property
    def by_name(self) -> dict[str, PlannedTable]:
        """A table of each name. Tables of two collections that share a name have the same sizes."""
        return {table.table.name: table for table in self.job.tables}

    @cached_property
    def plain_ms(self) -> list[float]:
        """For each collective, the time without codecs."""
        return [move_ms(self.job.machines, exchange.sent, exchange.received)[0] for exchange in self.plain.exchanges]

    def ms(self, forecast: Forecast) -> float:
        """All exchanges of a step: vectors with coding, ids, gradients of data-parallel tables, weights between replicas."""
        machines = forecast.job.machines
        vectors = sum(collective_ms(machines, exchange, self.speeds) for exchange in forecast.exchanges)
        ids = move_ms(machines, forecast.ids_sent, forecast.ids_received)[0]
        return vectors + ids + dense_ms(forecast) + sync_ms(forecast)

    def with_tables(self, tables: Mapping[int, PlannedTable], **changes: Any) -> Forecast:
        """The forecast with some tables replaced, and other fields of the job changed.

        The bytes of tables add up, so only the tables in question are forecast anew. The values to encode add up too, with one
        exception: the gradients of a reduce-scatter, where codecs differ by link.

        Args:
            tables: for some indices of tables in the job, what to put in their place.
            changes: fields of `Job`; they must not change the other tables' figures.
        """
        before = self.predict(replace(self.job, tables=tuple(self.job.tables[index] for index in tables)))
        after = self.predict(replace(self.job, tables=tuple(tables.values()), **changes))
        merged = tuple(tables.get(index, table) for index, table in enumerate(self.job.tables))
        return _sum([(self.forecast, 1), (before, -1), (after, 1)], replace(self.job, tables=merged, **changes))

    def heaviest(self, amounts: Iterable[float], most: int) -> list[int]:
        """At most ``most`` indices of tables, the largest amount first. Amounts are one a table; zeros are left out."""
        values = np.fromiter(amounts, dtype=np.float64)
        return [int(index) for index in np.argsort(-values, kind="stable")[:most] if values[index] > 0]

    @cached_property
    def off_rank(self) -> tuple[float, ...]:
        """For each table, its bytes that leave a rank, both directions together."""
        return tuple(float(sum(wire[1:].sum() for wire in entry.wire.values())) for entry in self.forecast.tables)


def _sum(parts: Sequence[tuple[Forecast, int]], job: Job) -> Forecast:
    """Forecasts added up, each with a sign. `Forecast.tables` stays empty, since no adviser asks for them."""
    by_key: dict[Any, list[tuple[ExchangeForecast, int]]] = {}
    for forecast, sign in parts:
        for exchange in forecast.exchanges:
            by_key.setdefault(exchange_key(exchange), []).append((exchange, sign))

    def total(name: str) -> Any:
        return _not_below_zero(sum(sign * getattr(forecast, name) for forecast, sign in parts))

    return Forecast(
        job=job,
        exchanges=tuple(_sum_exchanges(exchanges) for exchanges in by_key.values()),
        tables=(),
        **{
            name: total(name) for name in ("ids_sent", "ids_received", "lookups", "rows", "memory", "dense_bytes", "sync_bytes")
        },
    )


def _sum_exchanges(exchanges: Sequence[tuple[ExchangeForecast, int]]) -> ExchangeForecast:
    def total(name: str) -> Any:
        return _not_below_zero(sum(sign * getattr(exchange, name) for exchange, sign in exchanges))

    def by_codec(name: str) -> dict[Any, Any]:
        specs = dict.fromkeys(chain.from_iterable(getattr(exchange, name) for exchange, _ in exchanges))
        return {
            spec: _not_below_zero(sum(sign * getattr(exchange, name).get(spec, 0.0) for exchange, sign in exchanges))
            for spec in specs
        }

    summed: dict[str, Any] = {name: total(name) for name in ("sent", "received", "hosts")}
    coded: dict[str, Any] = {name: by_codec(name) for name in ("encoded", "decoded")}
    return replace(exchanges[0][0], **summed, **coded)


def _not_below_zero(amount: Any) -> Any:
    """The amount, or zero where rounding left less: something was subtracted whole."""
    return np.maximum(amount, 0.0)
