"""The details of the text report: tables, collectives, links, loads, what lies beside the exchange, and what was assumed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

import numpy as np

from torchrec_qcomm.planner import units as u
from torchrec_qcomm.planner.findings.results import Analysis
from torchrec_qcomm.planner.job import REACHES
from torchrec_qcomm.policy import Direction
from torchrec_qcomm.report import figures as f
from torchrec_qcomm.report.columns import aligned

_WIDTH = 100
_COLLECTIVES = 40
_CROSSING = 5
_RANKS = 6


def details_text(analysis: Analysis, tables: int = 20) -> str:
    """All below the summary.

    Args:
        analysis: what was found.
        tables: how many to list.
    """
    parts = [
        _tables(analysis, tables),
        _across(analysis),
        _dims(analysis),
        _collectives(analysis),
        _links(analysis),
        _loads(analysis),
        _beside(analysis),
        _advice(analysis),
        _speeds(analysis),
        _sentences("Assumed, for nothing said it", analysis.forecast.job.assumptions),
        _sentences("Notes", f.other_notes(analysis)),
    ]
    return "\n\n".join("\n".join(lines) for part in parts if (lines := list(part)))


def _tables(analysis: Analysis, count: int) -> Iterator[str]:
    tables = f.table_figures(analysis)
    if not tables:
        return
    shown, hidden = tables[:count], tables[count:]
    yield f"Tables, most bytes first: {len(shown)} of {len(tables):,} (bytes a step before and after, own shares included;"
    yield "GB/s: break-even, the rate of a rank above which moving the table plain is faster)"
    rest = [["dim", "kind", "codecs", "fwd", "after", "bwd", "after", "saved", "GB/s"]]
    for table in shown:
        codecs = ["/".join(table.codecs[direction]) or "-" for direction in Direction]
        both = codecs[0] if codecs[0] == codecs[1] else ",".join(codecs)
        sides = [u.size(side[direction]) for direction in Direction for side in (table.before, table.after)]
        rate = "-" if table.break_even is None else u.digits(table.break_even)
        kind = f.SHORT.get(table.planned.sharding_type, table.planned.sharding_type)
        rest.append([str(table.planned.table.dim), kind, u.shortened(both, 17), *sides, u.share(table.saved), rate])
    left = {"table", "kind", "codecs"}
    room = _WIDTH - 4 - max(map(len, aligned(rest, left).splitlines()))
    names = ["table", *(u.shortened(table.label, room) for table in shown)]
    yield aligned([[name, *cells] for name, cells in zip(names, rest, strict=True)], left, indent="  ")
    if hidden:
        before, after = sum(table.total_before for table in hidden), sum(table.total_after for table in hidden)
        gain = u.share(u.saved(before, after))
        yield f"  not shown: {len(hidden):,} tables, {u.size(before)} before and {u.size(after)} after, {gain} saved"


def _across(analysis: Analysis) -> Iterator[str]:
    machines = analysis.forecast.job.machines
    tables = [table for table in f.table_figures(analysis) if table.across]
    if not tables or machines.hosts == 1:
        return
    total = sum(table.across or 0.0 for table in tables)
    yield f"Tables that cross hosts most, with the policy: {min(len(tables), _CROSSING)} of {len(tables):,} that do"
    lines = [["table", "ranks", "crosses", "of the table", "of all that crosses"]]
    for table in sorted(tables, key=lambda table: -(table.across or 0.0))[:_CROSSING]:
        across, ranks = table.across or 0.0, u.shortened(u.ranges(map(int, table.planned.ranks)), 24)
        cells = [u.size(across), u.share(across / table.total_after), u.share(across / total)]
        lines.append([u.shortened(table.label, 30), ranks, *cells])
    yield aligned(lines, left={"table", "ranks"}, indent="  ")


def _dims(analysis: Analysis) -> Iterator[str]:
    tables = f.table_figures(analysis)
    if not tables:
        return
    yield "Tables by dim (the narrower a row, the more of it are scales)"
    lines = [["dim", "tables", "cumulative", "before", "after", "saved"]]
    for group in f.dim_groups(tables):
        dims = str(group.low) if group.low == group.high else f"{group.low}-{group.high}"
        cells = [f"{group.tables:,}", u.share(group.share), u.size(group.before), u.size(group.after)]
        lines.append([dims, *cells, u.share(u.saved(group.before, group.after))])
    yield aligned(lines, left={"dim"}, indent="  ")
    count, ids, sent = f.busiest(tables)
    many = f"{count:,} tables" if count > 1 else "table"
    part = u.share(count / len(tables))
    yield f"  the {many} with most ids, {part} of all: {u.share(ids)} of the ids looked up, {u.share(sent)} of the bytes"


def _collectives(analysis: Analysis) -> Iterator[str]:
    each = analysis.times.collectives
    if not each:
        return
    yield "Collectives (ms at the slowest rank; total: wire, encode and decode)"
    lines = [["module", "sharding", "hop", "direction", "plain", "wire", "encode", "decode", "total", "limited by"]]
    for one in each[:_COLLECTIVES]:
        times = [u.digits(ms) for ms in (one.plain_ms, one.wire_ms, one.encode_ms, one.decode_ms, one.quantized_ms)]
        if f.uncounted_codecs(analysis):
            times[2:4] = ["-" if time == "0" else time for time in times[2:4]]
        kind = f.SHORT.get(one.sharding_type, one.sharding_type)
        head = [u.shortened(one.module, 18), kind, str(one.hop), str(one.direction)]
        lines.append([*head, *times, one.limit])
    yield aligned(lines, left={"module", "sharding", "direction", "limited by"}, indent="  ")
    if hidden := each[_COLLECTIVES:]:
        yield f"  not shown: {len(hidden):,}, in all {u.time(sum(one.quantized_ms for one in hidden))}"


def _links(analysis: Analysis) -> Iterator[str]:
    machines = analysis.forecast.job.machines
    yield "Links (bytes a step of all ranks)"
    lines = [["", "fwd before", "after", "bwd before", "after", "saved", "ids"]]
    ids = analysis.forecast.ids_sent.sum(0)
    sides = [f.reach_bytes(side, direction) for direction in Direction for side in (analysis.plain, analysis.forecast)]
    for reach in f.present_reaches(machines):
        column = REACHES.index(reach)
        cells = [float(side[column]) for side in sides]
        gain = u.share(u.saved(cells[0] + cells[2], cells[1] + cells[3]))
        lines.append([f.reach_name(reach, machines), *map(u.size, cells), gain, u.size(ids[column])])
    yield aligned(lines, left={""}, indent="  ")
    if machines.devices_per_host is not None:
        yield f"  rates of a rank, one way: {f.rate_words(machines)}"
        yield "  (a host's NIC has the latter times its ranks, which share it)"


def _loads(analysis: Analysis) -> Iterator[str]:
    if not f.loads_of(analysis):
        return
    yield "Loads"
    lines = [["", "from", "least", "mean", "most", "max/mean", "most loaded ranks"]]
    for load in f.loads_of(analysis):
        ranks = load.per_rank
        order = np.argsort(-ranks, kind="stable")[:_RANKS] if load.worst else ()
        source = "batches" if load.measured else "plan"
        numbers = [u.amount(value, load.unit) for value in (ranks.min(), ranks.mean(), ranks.max())]
        cells = [number.removesuffix(f" {load.unit}").removesuffix(" a step") for number in numbers]
        most = ", ".join(map(str, order)) if load.worst else "even"
        lines.append(
            [
                (load.what if load.what == load.unit else f"{load.what}, {load.unit}") + " *" * ("bytes" in load.what),
                source,
                *cells,
                f"{load.max_over_mean:.3f}",
                most,
            ]
        )
    yield aligned(lines, left={"", "from", "most loaded ranks"}, indent="  ")
    yield "  * of the forward exchange, without a rank's share with itself"


def _beside(analysis: Analysis) -> Iterator[str]:
    yield "Beside the exchange, untouched by codecs, in no figure above"
    for said in f.beside_words(analysis):
        yield from textwrap.wrap(said, _WIDTH, initial_indent="  ", subsequent_indent="    ")


def _advice(analysis: Analysis) -> Iterator[str]:
    if not analysis.advice:
        return
    yield "Advice, the largest predicted gain first"
    for number, each in enumerate(analysis.advice, start=1):
        gain = f", about {u.time(each.gain_ms)} a step" if each.gain_ms > 0 else ""
        yield from textwrap.wrap(
            f"{number}. {each.title} [{each.rule}{gain}]", _WIDTH, initial_indent="  ", subsequent_indent=" " * 5
        )
        yield from textwrap.wrap(each.because, _WIDTH, initial_indent=" " * 5, subsequent_indent=" " * 5)
        yield from (" " * 9 + line for line in each.setting.splitlines())


def _speeds(analysis: Analysis) -> Iterator[str]:
    speeds = analysis.times.codec_speeds
    if not speeds:
        return
    yield "Codec speeds that the times take (GB/s of FP32 values)"
    lines = [["codec", "encode", "decode", "from"]]
    lines += [[name, u.digits(encode), u.digits(decode), how] for name, (encode, decode, how) in sorted(speeds.items())]
    yield aligned(lines, left={"codec", "from"}, indent="  ")


def _sentences(title: str, sentences: Sequence[str]) -> Iterator[str]:
    if sentences:
        yield title
    for sentence in sentences:
        yield from textwrap.wrap(sentence, _WIDTH, initial_indent="  - ", subsequent_indent="    ")
