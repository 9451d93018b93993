"""How long a step's exchanges take, from the bandwidths of the links and the speeds of the codecs.

One collective, in milliseconds (a GB/s moves 1e6 bytes in one):

    wire = max( max over ranks of its bytes inside hosts and pods / intra rate,
                max over hosts of its bytes to other hosts        / (inter rate x ranks of a host) )

Links are full-duplex: bytes out and bytes in are added up apart, and the larger sum decides. Ranks of a host share its NIC, so
one rank alone may use all of it. Traffic inside hosts overlaps with that between them, so the slower one decides. A rank's
share with itself takes no time. Left out are latency, contention in the network above the NICs, and the sums of a
reduce-scatter. So times are lower bounds, with codecs and without them.

Coding does not overlap with moving: encode + wire + decode, each at the rank with most to do.

An all-reduce of n bytes over W ranks is a ring: every rank sends 2 (W - 1) / W x n bytes to the next one, and all rings of a
host share its NIC (Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from torchrec_qcomm.codecs import CodecSpec
from torchrec_qcomm.planner.findings.results import CollectiveTime, Times
from torchrec_qcomm.planner.findings.speeds import Speeds
from torchrec_qcomm.planner.forecast.results import ExchangeForecast, Forecast
from torchrec_qcomm.planner.job import LINK_OF_REACH, REACHES, Job, Machines, PlannedTable, Reach
from torchrec_qcomm.policy import Direction, ResolvedPolicy

_INSIDE = [REACHES.index(reach) for reach in (Reach.INTRA_HOST, Reach.INTRA_POD)]
_BETWEEN = [REACHES.index(reach) for reach in (Reach.INTER_POD, Reach.UNKNOWN)]
"""Columns of the reaches that each link carries. If hosts are not known, each rank counts as a host of its own."""

_PER_MS = 1e6
"""Bytes that 1 GB/s moves in a millisecond."""


def times(forecast: Forecast, plain: Forecast, speeds: Speeds) -> Times:
    """Estimates for a step with the policy, beside the same step without codecs.

    Args:
        forecast: with the policy.
        plain: of the same job, without codecs.
        speeds: of codecs. One without a speed takes no time here, and `uncounted` names it.
    """
    job = forecast.job
    unquantized = {exchange_key(exchange): exchange for exchange in plain.exchanges}
    collectives = tuple(_collective(job.machines, each, unquantized[exchange_key(each)], speeds) for each in forecast.exchanges)
    return Times(
        collectives=collectives,
        ids_ms=move_ms(job.machines, forecast.ids_sent, forecast.ids_received)[0],
        dense_ms=dense_ms(forecast),
        sync_ms=sync_ms(forecast),
        break_even=break_even(forecast, plain, speeds),
        codec_speeds={
            str(spec): (*pair, speeds.how)
            for spec in codecs_of(forecast)
            if (pair := speeds.of(spec)) is not None and np.isfinite(pair).all()
        },
    )


def codecs_of(forecast: Forecast) -> tuple[CodecSpec, ...]:
    """All codecs of the exchanges, ``none`` too."""
    return tuple(dict.fromkeys(spec for each in forecast.exchanges for part in (each.encoded, each.decoded) for spec in part))


def uncounted(forecast: Forecast, speeds: Speeds) -> tuple[str, ...]:
    """Codecs of the exchanges whose speed is not known."""
    return tuple(str(spec) for spec in codecs_of(forecast) if speeds.of(spec) is None)


def move_ms(machines: Machines, sent: np.ndarray, received: np.ndarray) -> tuple[float, str]:
    """How long a collective takes, and the link that decides it, as in `CollectiveTime.limit`.

    Args:
        machines: the links.
        sent, received: ``[world, reach]`` bytes.
    """
    inside = between = 0.0
    for way in (sent, received):
        inside = max(inside, float(way[:, _INSIDE].sum(axis=1).max()))
        between = max(between, float(way[:, _BETWEEN].sum(axis=1).reshape(machines.hosts, -1).sum(axis=1).max()))
    intra_ms = inside / (machines.intra_host_gb_per_s * _PER_MS)
    inter_ms = between / (machines.inter_host_gb_per_s * (machines.devices_per_host or 1) * _PER_MS)
    if intra_ms == inter_ms == 0:
        return 0.0, "nothing"
    return max(intra_ms, inter_ms), "intra_host" if intra_ms > inter_ms else "inter_host"


def ring_ms(machines: Machines, rings: Iterable[Sequence[int]], nbytes: np.ndarray) -> float:
    """How long several all-reduces take that run at the same time, each over a ring of ranks in the order given.

    Args:
        machines: the links.
        rings: global ranks; a rank is in one of them at most.
        nbytes: ``[world]`` bytes that each rank gives.
    """
    sent = np.zeros((machines.world_size, len(REACHES)))
    received = np.zeros_like(sent)
    for ring in rings:
        for rank, after in zip(ring, [*ring[1:], ring[0]], strict=True):
            reach = REACHES.index(_reach(machines, rank, after))
            passed = 2 * (len(ring) - 1) / len(ring) * nbytes[rank]
            sent[rank, reach] += passed
            received[after, reach] += passed
    return move_ms(machines, sent, received)[0]


def collective_ms(machines: Machines, exchange: ExchangeForecast, speeds: Speeds) -> float:
    """One collective with its codecs: encoding, moving, decoding."""
    moving, _ = move_ms(machines, exchange.sent, exchange.received)
    return moving + _coding_ms(exchange.encoded, speeds, 0) + _coding_ms(exchange.decoded, speeds, 1)


def exchange_key(exchange: ExchangeForecast) -> tuple[str, str, int, Direction]:
    """Which collective of a step it is."""
    return exchange.module, exchange.sharding_type, exchange.hop, exchange.direction


def dense_ms(forecast: Forecast) -> float:
    """The all-reduce of the gradients of data-parallel tables, over all ranks (with 2D parallelism too)."""
    machines = forecast.job.machines
    return ring_ms(machines, [range(machines.world_size)], np.full(machines.world_size, forecast.dense_bytes))


def sync_ms(forecast: Forecast) -> float:
    """The all-reduce of weights between replicas, per step; 0 where there are none."""
    job = forecast.job
    if job.replicas is None:
        return 0.0
    return ring_ms(job.machines, replica_sets(job), forecast.sync_bytes) / job.replicas.sync_interval


def replica_sets(job: Job) -> list[list[int]]:
    """For every place in a sharding group, the global ranks there, which hold the same shards."""
    return [list(ranks) for ranks in zip(*job.groups(), strict=True)]


def break_even(forecast: Forecast, plain: Forecast, speeds: Speeds) -> dict[str, float | None]:
    """For each quantized table, the GB/s of a rank above which it is faster without codecs.

    On links of r GB/s, a table's P bytes take P / r without codecs. With codecs they are W bytes, which take W / r + C, where C
    is the time of coding. Both take the same at r = (P - W) / C: bytes saved over time spent. P, W and C are those of all ranks
    and both directions, as if ranks shared them equally. P and W leave out a rank's share with itself; C does not.

    C has one encoding for every value that is moved. The backward of a reduce-scatter encodes a value once for many ranks, so a
    row-wise table may still gain somewhat above its rate. A table with a codec of unknown speed is left out.
    """
    by_module = forecast.job.resolved()
    saved: dict[str, float] = {}
    spent: dict[str, float | None] = {}
    for quantized, unquantized in zip(forecast.tables, plain.tables, strict=True):
        name, resolved = quantized.planned.table.name, by_module[quantized.planned.module]
        if not resolved.quantizes(name) or not len(quantized.planned.ranks):
            continue
        off_rank = sum(float((unquantized.wire[way] - quantized.wire[way])[1:].sum()) for way in Direction)
        saved[name] = saved.get(name, 0.0) + off_rank
        coding, so_far = _coding_s(quantized.planned, quantized.values, resolved, speeds), spent.get(name, 0.0)
        spent[name] = None if coding is None or so_far is None else so_far + coding
    return {
        name: float(saved[name] / seconds / 1e9) if seconds > 0 and saved[name] > 0 else None
        for name, seconds in spent.items()
        if seconds is not None
    }


def _coding_s(
    table: PlannedTable, values: Mapping[Direction, np.ndarray], resolved: ResolvedPolicy, speeds: Speeds
) -> float | None:
    seconds = 0.0
    for direction in Direction:
        for reach, many in zip(REACHES, values[direction], strict=True):
            speed = speeds.of(resolved.codec(table.table.name, direction, LINK_OF_REACH[reach])) if many else (1.0, 1.0)
            if speed is None:
                return None
            seconds += many * 4 / 1e9 * (1 / speed[0] + 1 / speed[1])
    return seconds


def _collective(machines: Machines, quantized: ExchangeForecast, plain: ExchangeForecast, speeds: Speeds) -> CollectiveTime:
    wire_ms, limit = move_ms(machines, quantized.sent, quantized.received)
    return CollectiveTime(
        module=quantized.module,
        sharding_type=quantized.sharding_type,
        hop=quantized.hop,
        direction=quantized.direction,
        plain_ms=move_ms(machines, plain.sent, plain.received)[0],
        wire_ms=wire_ms,
        encode_ms=_coding_ms(quantized.encoded, speeds, 0),
        decode_ms=_coding_ms(quantized.decoded, speeds, 1),
        limit=limit,
    )


def _coding_ms(values: Mapping[CodecSpec, np.ndarray], speeds: Speeds, which: int) -> float:
    """Encoding (``which`` 0) or decoding (1), at the rank with most to do."""
    total: np.ndarray | float = 0.0
    for spec, many in values.items():
        if (speed := speeds.of(spec)) is not None:
            total = total + many * 4 / (speed[which] * _PER_MS)
    return float(np.max(total))


def _reach(machines: Machines, source: int, destination: int) -> Reach:
    if source == destination:
        return Reach.SELF
    if machines.devices_per_host is None:
        return Reach.UNKNOWN
    hosts = source // machines.devices_per_host, destination // machines.devices_per_host
    if hosts[0] == hosts[1]:
        return Reach.INTRA_HOST
    return Reach.INTRA_POD if hosts[0] // machines.pod_hosts == hosts[1] // machines.pod_hosts else Reach.INTER_POD
