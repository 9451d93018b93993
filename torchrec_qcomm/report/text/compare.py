"""Several analyses side by side: the job as it is, then the what-if cases."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from torchrec_qcomm.planner import units as u
from torchrec_qcomm.planner.findings.crossing import across_hosts
from torchrec_qcomm.planner.findings.results import Analysis
from torchrec_qcomm.policy import Direction
from torchrec_qcomm.report import figures as f
from torchrec_qcomm.report.columns import aligned

_WIDTH = 100

Cell = Callable[[Analysis], str]


def comparison_text(columns: Sequence[tuple[str, Analysis]]) -> str:
    """A column for each analysis. Columns that do not fit go below, each time beside the first.

    Args:
        columns: ``(name, analysis)``, the first is what the others are compared with.
    """
    analyses = [analysis for _, analysis in columns]
    labels = [label for label, _ in _rows(analyses)]
    cells = [[name, *(cell(analysis) for _, cell in _rows(analyses))] for name, analysis in columns]
    first, *others = [[u.shortened(text, 30) for text in column] for column in cells]
    blocks: list[list[list[str]]] = []
    for column in others:
        if not blocks or _width(["", *labels], [*blocks[-1], column]) > _WIDTH:
            blocks.append([first])
        blocks[-1].append(column)
    parts = ["What if (bytes and ms of a step; bytes with the policy, of all ranks, own shares included)"]
    for block in blocks or [[first]]:
        lines = list(zip(["", *labels], *block, strict=True))
        parts.append(aligned(lines, left={""}, indent="  "))
    for name, analysis in columns:
        if slower := f.slower_words(analysis):
            parts += textwrap.wrap(f"{name}: {slower}", _WIDTH, initial_indent="  ", subsequent_indent="  ")
    return "\n\n".join(parts)


def _width(labels: Sequence[str], block: Sequence[Sequence[str]]) -> int:
    return 2 + max(map(len, labels)) + sum(2 + max(map(len, column)) for column in block)


def _rows(analyses: Sequence[Analysis]) -> Iterator[tuple[str, Cell]]:
    """The rows: their names, and what an analysis has in them. Rows that would be empty are left out."""
    yield "ranks", lambda a: f"{a.forecast.job.machines.world_size:,}"
    yield "hosts", _hosts
    if any(a.forecast.job.replicas for a in analyses):
        yield "ranks of a sharding group", lambda a: str(len(a.forecast.job.groups()[0]))
    yield "tables", _shardings
    for way in Direction:
        yield f"{way}, without codecs", partial(_plain, way)
        yield f"{way}", partial(_sent, way)
    yield "both, of a rank on average", lambda a: u.size(f.sent_bytes(a.forecast) / a.forecast.job.machines.world_size)
    yield "saved", lambda a: u.share(u.saved(f.sent_bytes(a.plain), f.sent_bytes(a.forecast)))
    yield "crosses hosts", lambda a: _crossing(a, None)
    yield "  share, own left out", lambda a: _crossing(a, False)
    yield "  share, own counted", lambda a: _crossing(a, True)
    yield "time without codecs", lambda a: u.time(a.times.plain_ms)
    yield "time with the policy", _time
    yield "ids, beside it", lambda a: u.time(a.times.ids_ms)
    if any(a.times.dense_ms for a in analyses):
        yield "data-parallel gradients", lambda a: u.time(a.times.dense_ms)
    if any(a.times.sync_ms for a in analyses):
        yield "weight sync of 2D", lambda a: u.time(a.times.sync_ms)
    yield "all of these, in turn", _all_time
    yield "weights of the fullest rank", lambda a: u.size(float(a.forecast.memory.max()))
    names = dict.fromkeys(f.load_name(load) for a in analyses for load in a.loads)
    for name in names:
        yield f"max/mean of {name}", partial(_load, name)


def _hosts(analysis: Analysis) -> str:
    machines = analysis.forecast.job.machines
    return "not known" if machines.devices_per_host is None else f"{machines.hosts:,}"


def _plain(way: Direction, analysis: Analysis) -> str:
    return u.size(f.sent_bytes(analysis.plain, way))


def _sent(way: Direction, analysis: Analysis) -> str:
    return u.size(f.sent_bytes(analysis.forecast, way))


def _crossing(analysis: Analysis, include_self: bool | None) -> str:
    """Bytes between hosts, or their share."""
    if not analysis.crossing.known:
        return "not known"
    if include_self is None:
        return u.size(across_hosts(analysis.crossing.wire))
    shares = analysis.crossing.shares(include_self)
    return "-" if shares is None or not analysis.crossing.wire.any() else u.share(across_hosts(shares))


def _shardings(analysis: Analysis) -> str:
    """How many tables are sharded how. Other machines make another plan, and so other bytes."""
    counts = f.sharding_counts(f.table_figures(analysis))
    return ", ".join(f"{count:,} {f.SHORT.get(name, name)}" for name, count in counts) or "none"


def _time(analysis: Analysis) -> str:
    return f"{_with_coding(analysis, analysis.times.quantized_ms)}{' (SLOWER)' if analysis.times.slower else ''}"


def _all_time(analysis: Analysis) -> str:
    """The exchange and what lies beside it, if nothing overlaps."""
    times = analysis.times
    return _with_coding(analysis, times.quantized_ms + times.ids_ms + times.dense_ms + times.sync_ms)


def _with_coding(analysis: Analysis, ms: float) -> str:
    return u.time(ms) + (" + coding" if f.uncounted_codecs(analysis) else "")


def _load(name: str, analysis: Analysis) -> str:
    return next((f"{load.max_over_mean:.3f}" for load in analysis.loads if f.load_name(load) == name), "-")
