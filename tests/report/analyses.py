"""Analyses made by hand: table-wise tables, dealt out at random, so that every figure of a report can be told beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from torchrec_qcomm import codecs
from torchrec_qcomm.planner.findings.results import Advice, Analysis, CollectiveTime, Crossing, Load, Times
from torchrec_qcomm.planner.forecast.results import ExchangeForecast, Forecast, TableForecast
from torchrec_qcomm.planner.job import REACHES, Job, Machines, PlannedTable, Reach
from torchrec_qcomm.policy import Direction, Policy, Table

ASSUMED = "pooling factor 1 for all tables: nothing said otherwise"


class MadeForecast(Forecast):
    """A forecast whose matrix of rank pairs is written down."""

    def rank_matrix(self, directions: Iterable[Direction] = Direction) -> np.ndarray:
        return sum(self.pairs[direction] for direction in set(directions))


def machines(world: int, devices_per_host: int | None, pod_hosts: int = 1) -> Machines:
    return Machines(world, devices_per_host, pod_hosts, 450.0, 50.0)


def tables_of(count: int, world: int, seed: int, dims: tuple[int, ...] = (8, 12, 64, 128)) -> tuple[PlannedTable, ...]:
    """Table-wise tables, each on a rank drawn at random."""
    draw = np.random.default_rng(seed)
    made = []
    for index in range(count):
        dim, rows = int(draw.choice(dims)), int(draw.integers(10, 1_000_000))
        owner = np.array([draw.integers(world)])
        pooling = (float(draw.integers(1, 20)),)
        made.append(
            PlannedTable(
                Table(f"t_{index}", rows, dim),
                "model.ebc",
                (f"f_{index}",),
                pooling,
                "table_wise",
                owner,
                np.array([rows]),
                np.array([dim]),
                np.array([0]),
            )
        )
    return tuple(made)


def reach_of(where: Machines) -> np.ndarray:
    """``[world, world]`` columns of `REACHES`."""
    ranks = np.arange(where.world_size)
    far = np.full((where.world_size,) * 2, REACHES.index(Reach.UNKNOWN))
    if where.devices_per_host:
        host = ranks // where.devices_per_host
        pod = host // where.pod_hosts
        far[:] = REACHES.index(Reach.INTER_POD)
        far[pod[:, None] == pod] = REACHES.index(Reach.INTRA_POD)
        far[host[:, None] == host] = REACHES.index(Reach.INTRA_HOST)
    np.fill_diagonal(far, 0)
    return far


def by_reach(pairs: np.ndarray, far: np.ndarray, axis: int) -> np.ndarray:
    """``[world, reach]`` sums of a matrix of rank pairs."""
    return np.stack([np.where(far == column, pairs, 0.0).sum(axis) for column in range(len(REACHES))], axis=-1)


def forecast_of(job: Job) -> MadeForecast:
    """What table-wise tables send, worked out pair by pair."""
    world, far = job.machines.world_size, reach_of(job.machines)
    resolved = job.policy.resolve(planned.table for planned in job.tables)
    pairs = {direction: np.zeros((world, world)) for direction in Direction}
    lookups, rows, memory = np.zeros(world), np.zeros(world), np.zeros(world)
    exchanges, tables = [], []
    for planned in job.tables:
        name, (owner,) = planned.table.name, planned.ranks
        wire, values = {}, {}
        for direction in Direction:
            bytes_ = job.batch_size * codecs.get(resolved.codec(name, direction, "inter_host")).row_bytes(planned.table.dim)
            mine = np.zeros((world, world))
            mine[(owner, slice(None)) if direction == Direction.FORWARD else (slice(None), owner)] = bytes_
            pairs[direction] += mine
            wire[direction] = by_reach(mine, far, 1).sum(0)
            values[direction] = wire[direction] / bytes_ * job.batch_size * planned.table.dim
        ids = job.batch_size * planned.pooling[0]
        id_bytes = by_reach(np.eye(world)[owner][None].repeat(world, 0) * (ids + job.batch_size) * 8, far, 1)
        tables.append(TableForecast(planned, wire, values, ids * world, id_bytes.sum(0)))
        lookups[owner] += ids * world
        rows[owner] += planned.table.rows
        memory[owner] += planned.table.rows * planned.table.dim * 4
    for direction in Direction:
        host = np.arange(world) // (job.machines.devices_per_host or 1)
        hosts = np.zeros((job.machines.hosts,) * 2)
        np.add.at(hosts, (host[:, None], host[None]), pairs[direction])
        sent, received = by_reach(pairs[direction], far, 1), by_reach(pairs[direction].T, far.T, 1)
        names = tuple(planned.table.name for planned in job.tables)
        exchanges.append(ExchangeForecast("model.ebc", "table_wise", 0, direction, sent, received, hosts, {}, {}, names))
    ids = sum((table.id_bytes for table in tables), np.zeros(len(REACHES))) / world
    made = MadeForecast(
        job,
        tuple(exchanges),
        tuple(tables),
        np.tile(ids, (world, 1)),
        np.tile(ids, (world, 1)),
        lookups,
        rows,
        memory,
        4096.0,
        np.zeros(world),
    )
    object.__setattr__(made, "pairs", pairs)
    return made


def load_of(what: str, unit: str, per_rank: np.ndarray, measured: bool = False) -> Load:
    worst = np.argsort(-per_rank, kind="stable")[:3]
    uneven = per_rank.mean() and per_rank.max() > 1.1 * per_rank.mean()
    return Load(what, unit, per_rank, tuple(map(int, worst)) if uneven else (), (("t_0", 0.75), ("t_1", 0.2)), measured)


def times_of(forecast: Forecast, plain: Forecast, coding_ms: float) -> Times:
    collectives = []
    for with_, without in zip(forecast.exchanges, plain.exchanges, strict=True):
        plain_ms, wire_ms = without.sent.sum(1).max() / 50e6, with_.sent.sum(1).max() / 50e6
        collectives.append(
            CollectiveTime(
                with_.module, with_.sharding_type, 0, with_.direction, plain_ms, wire_ms, coding_ms, 2 * coding_ms, "inter_host"
            )
        )
    break_even: Mapping[str, float | None] = {"t_0": 123.4, "t_1": None}
    return Times(tuple(collectives), 0.5, 0.25, 0.0, break_even, {"int8": (4.0, 9.0, "given")})


def analysis_of(
    world: int = 8,
    devices_per_host: int | None = 4,
    tables: int = 6,
    policy: Policy | None = None,
    seed: int = 0,
    coding_ms: float = 0.01,
    **job: object,
) -> Analysis:
    """A whole analysis; the same arguments make the same one."""
    pods = int(job.pop("pod_hosts", 1))  # type: ignore[call-overload]
    batch = int(job.pop("batch_size", 64))  # type: ignore[call-overload]
    made = Job(
        tables_of(tables, world, seed),
        machines(world, devices_per_host, pods),
        batch,
        policy or Policy("int8", "fp8_e5m2"),
        assumptions=(ASSUMED,),
        **job,
    )
    forecast, plain = forecast_of(made), forecast_of(made.under(Policy()))
    sent, received = forecast.sent().sum(1), forecast.received().sum(1)
    loads = (
        load_of("lookups", "ids a step", forecast.lookups),
        load_of("lookups", "ids a step", forecast.lookups[::-1], measured=True),
        load_of("bytes sent", "B a step", sent),
        load_of("bytes received", "B a step", received),
        load_of("rows", "rows", forecast.rows),
        load_of("memory", "B", forecast.memory),
    )
    advice = (
        Advice("lower_precision", "lower precision for t_0", "t_0 sends 75 % of all bytes.", "rules:\n  - {tables: t_0}", 1.5),
        Advice("wide", "vectors of t_1 are too wide", "Half of its bytes are <never> needed & costly.", "", 0.25),
    )
    crossing = Crossing(forecast.sent().sum(0), devices_per_host is not None)
    return Analysis(forecast, plain, loads, crossing, times_of(forecast, plain, coding_ms), advice, ("ids are drawn <evenly>",))


def without_tables() -> Analysis:
    """A job with nothing to exchange."""
    return analysis_of(tables=0)


def slower() -> Analysis:
    """Coding that takes longer than it saves."""
    return analysis_of(coding_ms=50.0)


def with_name(name: str) -> Analysis:
    """A table of that name among others."""
    whole = analysis_of()
    first, *rest = whole.forecast.job.tables
    job = replace(whole.forecast.job, tables=(replace(first, table=replace(first.table, name=name)), *rest))
    forecast = forecast_of(job)
    return replace(whole, forecast=forecast, plain=forecast_of(job.under(Policy())))


COMMON_CASES = {
    "small": analysis_of(),
    "pods": analysis_of(16, 2, pod_hosts=2),
    "96 ranks": analysis_of(96, 8, 400),
    "hosts unknown": analysis_of(4, None),
    "one rank": analysis_of(1, 1),
    "slower": slower(),
    "no tables": without_tables(),
}
"""What every form of the report is made of."""
