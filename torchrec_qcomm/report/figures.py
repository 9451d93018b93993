"""The figures that text, JSON and HTML share, so that no two of them can say different things."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from torchrec_qcomm.planner import units as u
from torchrec_qcomm.planner.findings.crossing import across_hosts
from torchrec_qcomm.planner.findings.loads import AT_FAULT, ranks_at_fault
from torchrec_qcomm.planner.findings.results import Analysis, Load
from torchrec_qcomm.planner.forecast.results import Forecast, TableForecast
from torchrec_qcomm.planner.job import LINK_OF_REACH, REACHES, Machines, PlannedTable, Reach
from torchrec_qcomm.planner.kinds import KINDS
from torchrec_qcomm.planner.search.topology import DEFAULT_RATES
from torchrec_qcomm.policy import Direction, Policy
from torchrec_qcomm.policy.resolution import LOSSLESS

SLOWER = "PREDICTED TO BE SLOWER"

SHORT = {kind.name: kind.short for kind in KINDS}
"""Short names of TorchRec's sharding types, for columns."""


@dataclass(frozen=True, slots=True)
class TableFigures:
    """What a report says of one table. Bytes are those that all ranks send in a step, to themselves too.

    Attributes:
        planned: the table.
        label: its name; with the path of its collection where two have that name.
        codecs: for each direction, the codecs of its rows: several if links differ, none if the table is not exchanged.
        before: for each direction, bytes without codecs.
        after: with the policy.
        across: the part of ``after`` that goes between hosts, both directions together; ``None``: it is not known which ranks
            share a host.
        lookups: ids a step.
        id_bytes: of its ids, which no codec touches.
        break_even: as in `Times`; ``None`` too for a table that the policy does not quantize.
    """

    planned: PlannedTable
    label: str
    codecs: Mapping[Direction, tuple[str, ...]]
    before: Mapping[Direction, float]
    after: Mapping[Direction, float]
    across: float | None
    lookups: float
    id_bytes: float
    break_even: float | None

    @property
    def sample_ids(self) -> float:
        """Ids of a sample."""
        bags = self.planned.num_poolings or (1.0,) * len(self.planned.pooling)
        return sum(ids * many for ids, many in zip(self.planned.pooling, bags, strict=True))

    @property
    def total_before(self) -> float:
        """Both directions."""
        return sum(self.before.values())

    @property
    def total_after(self) -> float:
        """Both directions."""
        return sum(self.after.values())

    @property
    def saved(self) -> float | None:
        """Share of the bytes."""
        return u.saved(self.total_before, self.total_after)


def table_figures(analysis: Analysis) -> list[TableFigures]:
    """All tables. Those that send most without codecs come first, equal ones in the order of the job."""
    names = Counter(table.planned.table.name for table in analysis.forecast.tables)
    made = [
        TableFigures(
            planned=after.planned,
            label=_label(after.planned, names),
            codecs={direction: _codecs(after, direction, analysis.forecast.job.policy) for direction in Direction},
            before={direction: float(before.wire[direction].sum()) for direction in Direction},
            after={direction: float(after.wire[direction].sum()) for direction in Direction},
            across=across_hosts(np.sum([*after.wire.values()], axis=0)) if analysis.crossing.known else None,
            lookups=float(after.lookups),
            id_bytes=float(after.id_bytes.sum()),
            break_even=analysis.times.break_even.get(after.planned.table.name),
        )
        for after, before in zip(analysis.forecast.tables, analysis.plain.tables, strict=True)
    ]
    return sorted(made, key=lambda figures: -figures.total_before)


def _label(planned: PlannedTable, names: Mapping[str, int]) -> str:
    name = planned.table.name
    return f"{planned.module}.{name}" if names[name] > 1 else name


def _codecs(table: TableForecast, direction: Direction, policy: Policy) -> tuple[str, ...]:
    """The different codecs of a table in a direction, in the order of the reaches that its bytes have."""
    found: dict[str, None] = {}
    for reach, values in zip(REACHES, table.values[direction], strict=True):
        if values:
            found[str(policy.decide(table.planned.table, direction, LINK_OF_REACH[reach]).codec)] = None
    return tuple(found)


def codec_counts(tables: Iterable[TableFigures], direction: Direction) -> list[tuple[str, int]]:
    """How many tables have which codecs, the most frequent first. Several codecs of one table are joined by ``/``.

    Data-parallel tables are left out.
    """
    counts = Counter("/".join(table.codecs[direction]) for table in tables if table.codecs[direction])
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def sharding_counts(tables: Iterable[TableFigures]) -> list[tuple[str, int]]:
    """How many tables are sharded in which way, the most frequent first."""
    counts = Counter(table.planned.sharding_type for table in tables)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def sent_bytes(forecast: Forecast, direction: Direction | None = None) -> float:
    """What all ranks send in a step, to themselves too; by default in both directions."""
    return float(forecast.sent(Direction if direction is None else (direction,)).sum())


def reach_bytes(forecast: Forecast, direction: Direction) -> np.ndarray:
    """``[reach]`` bytes of all ranks."""
    return forecast.sent((direction,)).sum(0)


def present_reaches(machines: Machines) -> list[Reach]:
    """The reaches that bytes can have on these machines, in order."""
    if machines.devices_per_host is None:
        return [Reach.SELF, *([Reach.UNKNOWN] if machines.world_size > 1 else [])]
    reaches = [Reach.SELF]
    reaches += [Reach.INTRA_HOST] if machines.devices_per_host > 1 else []
    reaches += [Reach.INTRA_POD] if min(machines.pod_hosts, machines.hosts) > 1 else []
    reaches += [Reach.INTER_POD] if machines.hosts > machines.pod_hosts else []
    return reaches


def reach_name(reach: Reach, machines: Machines) -> str:
    """A reach in words. Where a pod is one host, bytes that leave it go between hosts."""
    return {
        Reach.SELF: "with itself",
        Reach.INTRA_HOST: "inside a host",
        Reach.INTRA_POD: "between hosts of a pod",
        Reach.INTER_POD: "between hosts" if machines.pod_hosts == 1 else "between pods",
        Reach.UNKNOWN: "to other ranks",
    }[reach]


def coding_ms(analysis: Analysis) -> tuple[float, float, float]:
    """The ms in which the exchange with the policy moves bytes, encodes and decodes, summed over its collectives."""
    each = analysis.times.collectives
    return sum(c.wire_ms for c in each), sum(c.encode_ms for c in each), sum(c.decode_ms for c in each)


def machine_words(machines: Machines) -> str:
    """The ranks and hosts in a line."""
    if machines.devices_per_host is None:
        return f"{machines.world_size:,} ranks, ranks of a host not known"
    words = (
        f"{machines.world_size:,} ranks: {machines.hosts:,} host{'s' * (machines.hosts != 1)} of {machines.devices_per_host}"
    )
    return words + (f", pods of {machines.pod_hosts} hosts" if machines.pod_hosts > 1 else "")


def rate_words(machines: Machines) -> str:
    """The rates of the links. Those that TorchRec takes if nobody gives others are marked."""
    said = []
    given = (machines.intra_host_gb_per_s, "inside a host"), (machines.inter_host_gb_per_s, "between hosts")
    for (rate, where), default in zip(given, DEFAULT_RATES, strict=True):
        taken = " (TorchRec's default)" if np.isclose(rate, default) else ""
        said.append(f"{u.rate(rate)} {where}{taken}")
    return ", ".join(said)


def uncounted_codecs(analysis: Analysis) -> tuple[str, ...]:
    """Codecs that the exchange uses, but whose speed is not known. Times leave their work out."""
    used = {
        str(spec)
        for each in analysis.forecast.exchanges
        for spec in (*each.encoded, *each.decoded)
        if spec.name not in LOSSLESS
    }
    return tuple(sorted(used - set(analysis.times.codec_speeds)))


def slower_words(analysis: Analysis) -> str:
    """A sentence if the exchange is predicted to be slower with the policy; else nothing."""
    times = analysis.times
    if not times.slower:
        return ""
    longer = f" by {u.time(times.quantized_ms - times.plain_ms)} a step"
    return f"{SLOWER}{longer}: coding takes longer than the bytes that it saves"


def beside_words(analysis: Analysis) -> list[str]:
    """What a step moves beside the exchange, in sentences."""
    forecast, times = analysis.forecast, analysis.times
    ids, exchanged = float(forecast.ids_sent.sum()), sent_bytes(forecast)
    relation = f" ({100 * ids / exchanged:.0f} % of the exchange)" if exchanged else ""
    size = u.size(forecast.dense_bytes)
    said = [
        f"ids, lengths and weights (input dist): {u.size(ids)} a step, all ranks{relation}; {u.time(times.ids_ms)}",
        f"gradients of data-parallel tables: {size} a step, from each rank to an all-reduce; {u.time(times.dense_ms)}",
    ]
    if forecast.job.replicas is not None:
        every = forecast.job.replicas.sync_interval
        often = "a step" if every == 1 else f"every {every} steps"
        most = u.size(float(forecast.sync_bytes.max()))
        said.append(
            f"weights of 2D replicas: at most {most} {often}, from a rank to an all-reduce; {u.time(times.sync_ms)} a step"
        )
    return said


def other_notes(analysis: Analysis) -> list[str]:
    """The notes without the assumptions of the job, since reports list those apart."""
    return [note for note in analysis.notes if note not in analysis.forecast.job.assumptions]


def codec_words(tables: Iterable[TableFigures], direction: Direction, shown: int = 4) -> str:
    """Which codecs the tables have, and how many tables each."""
    counts = codec_counts(tables, direction)
    if not counts:
        return "nothing is exchanged: there is nothing to quantize"
    words = [f"{codec} on {count:,} table{'s' * (count != 1)}" for codec, count in counts[:shown]]
    if rest := sum(count for _, count in counts[shown:]):
        words.append(f"others on {rest:,}")
    return ", ".join(words)


def load_name(load: Load) -> str:
    """What a load is of; for lookups also whether they were measured or assumed."""
    source = " (measured)" if load.measured else " (assumed)" if load.what == "lookups" else ""
    return load.what + source


def ranks_above(load: Load) -> list[int]:
    """All ranks that carry too much, of which `Load.worst` names the first; none if the load is even."""
    if not load.worst:
        return []
    return [int(rank) for rank in np.flatnonzero(load.per_rank > AT_FAULT * load.per_rank.mean())]


def heavy_tables(load: Load, count: int) -> list[tuple[str, float]]:
    """The tables of the most loaded rank that are at least 1 % of its load; none if the load is even."""
    return [(name, part) for name, part in load.tables[:count] if part >= 0.01] if load.worst else []


def loads_of(analysis: Analysis) -> list[Load]:
    """The loads of the analysis, and the memory that TorchRec's planner counts for tables, if that is known."""
    planned = analysis.forecast.job.planned_memory
    if planned is None:
        return list(analysis.loads)
    return [*analysis.loads, Load("planned memory", "B", planned, ranks_at_fault(planned), ())]


def plain_max_over_mean(analysis: Analysis, load: Load) -> float | None:
    """What `Load.max_over_mean` is without codecs; ``None`` for loads that codecs do not change."""
    sides = {"bytes sent": analysis.plain.sent, "bytes received": analysis.plain.received}
    if load.what not in sides:
        return None
    off_rank = sides[load.what]((Direction.FORWARD,))[:, 1:].sum(1)
    return replace(load, per_rank=off_rank).max_over_mean


@dataclass(frozen=True, slots=True)
class DimGroup:
    """Tables of similar dim. Bytes are as in `TableFigures`.

    Attributes:
        low, high: the smallest and largest dim, both included.
        tables: how many.
        share: how many of all tables have such a dim or a smaller one, 0 to 1.
        before, after: bytes without codecs, and with the policy.
    """

    low: int
    high: int
    tables: int
    share: float
    before: float
    after: float


def dim_groups(tables: list[TableFigures]) -> list[DimGroup]:
    """Tables by dim, the smallest first. A group goes from one power of two to the next."""
    found: dict[int, list[TableFigures]] = {}
    for table in tables:
        found.setdefault((table.planned.table.dim - 1).bit_length(), []).append(table)
    groups: list[DimGroup] = []
    for _, some in sorted(found.items()):
        dims = [table.planned.table.dim for table in some]
        so_far = sum(group.tables for group in groups) + len(some)
        before, after = sum(table.total_before for table in some), sum(table.total_after for table in some)
        groups.append(DimGroup(min(dims), max(dims), len(some), so_far / len(tables), before, after))
    return groups


def busiest(tables: list[TableFigures], part: float = 0.01) -> tuple[int, float, float]:
    """The tables with most ids: how many they are, their share of all ids, and their share of all bytes.

    An id counts once, even if several column-wise shards look it up.

    Args:
        tables: all of them.
        part: which part of them to take; at least one table is taken.
    """
    count = max(1, round(part * len(tables)))
    most = sorted(tables, key=lambda table: -table.sample_ids)[:count]
    ids, after = sum(table.sample_ids for table in tables), sum(table.total_after for table in tables)
    own, sent = sum(table.sample_ids for table in most), sum(table.total_after for table in most)
    return count, own / ids if ids else 0.0, sent / after if after else 0.0
