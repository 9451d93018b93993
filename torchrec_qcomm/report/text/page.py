"""An analysis as text for a terminal: one screen of summary, then the details."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from torchrec_qcomm.planner import units as u
from torchrec_qcomm.planner.findings.results import Advice, Analysis
from torchrec_qcomm.planner.job import REACHES
from torchrec_qcomm.policy import Direction
from torchrec_qcomm.report import figures as f
from torchrec_qcomm.report.bottleneck import bottleneck_words
from torchrec_qcomm.report.columns import aligned
from torchrec_qcomm.report.text.details import details_text

WIDTH = 100
LINES = 40
_ADVICE = 3


def report_text(analysis: Analysis, title: str = "", tables: int = 20) -> str:
    """The whole report.

    Args:
        analysis: what was found.
        title: of the first line, such as the name of the config.
        tables: how many to list.

    Returns:
        At most 100 columns wide but for settings to paste, without a line end at its end.
    """
    return f"{summary_text(analysis, title)}\n\n{details_text(analysis, tables)}"


def summary_text(analysis: Analysis, title: str = "") -> str:
    """The first screen: at most 40 lines of 100 columns."""
    parts = [_job(analysis, title), _bytes(analysis), _crossing(analysis), _time(analysis), _loads(analysis)]
    above = "\n\n".join("\n".join(part) for part in parts)
    room = LINES - len(above.splitlines()) - 2
    return f"{above}\n\n" + "\n".join(_advice(analysis.advice, min(_ADVICE, room // 2)))


def _job(analysis: Analysis, title: str) -> Iterator[str]:
    job, tables = analysis.forecast.job, f.table_figures(analysis)
    machines = job.machines
    shardings = ", ".join(f"{count:,} {name}" for name, count in f.sharding_counts(tables))
    rows = sum(planned.table.rows for planned in job.tables)
    yield f"Forecast of a step{f': {u.shortened(title, WIDTH - 24)}' if title else ''}"
    facts = [f.machine_words(machines), f"batch {job.batch_size:,} a rank"]
    if job.replicas is not None:
        every = "" if job.replicas.sync_interval == 1 else f" every {job.replicas.sync_interval} steps"
        facts.append(f"2D: groups of {job.replicas.group_size}, weights synced{every}")
    yield "  " + u.shortened(", ".join(facts), WIDTH - 2)
    kinds = f" ({shardings})" if shardings else ""
    yield "  " + u.shortened(f"{len(tables):,} tables{kinds}, {rows:,} rows", WIDTH - 2)
    for direction in Direction:
        yield "  " + u.shortened(f"{direction:<8}  {f.codec_words(tables, direction)}", WIDTH - 2)


def _bytes(analysis: Analysis) -> Iterator[str]:
    yield "Bytes a step, of all ranks together, a rank's share with itself included"
    lines = [["", "without codecs", "with the policy", "saved"]]
    for direction in (*Direction, None):
        before, after = f.sent_bytes(analysis.plain, direction), f.sent_bytes(analysis.forecast, direction)
        lines.append([str(direction or "both"), u.size(before), u.size(after), u.share(u.saved(before, after))])
    yield aligned(lines, left={""}, indent="  ")


def _crossing(analysis: Analysis) -> Iterator[str]:
    machines = analysis.forecast.job.machines
    yield "How far they go with the policy, both directions"
    if not analysis.crossing.known:
        yield "  not known: nothing says how many ranks a host has (give a topology, or LOCAL_WORLD_SIZE)"
        return
    reaches = f.present_reaches(machines)
    lines = [["", *(f.reach_name(reach, machines) for reach in reaches)]]
    columns = [REACHES.index(reach) for reach in reaches]
    wire = analysis.crossing.wire
    lines.append(["bytes a step", *(u.size(wire[column]) for column in columns)])
    for words, include_self in (("share, a rank's own counted", True), ("share, a rank's own left out", False)):
        shares = analysis.crossing.shares(include_self)
        assert shares is not None
        cells = [u.share(shares[column] if wire.any() and (column or include_self) else None) for column in columns]
        lines.append([words, *cells])
    yield aligned(lines, left={""}, indent="  ")


def _time(analysis: Analysis) -> Iterator[str]:
    times = analysis.times
    wire, encode, decode = f.coding_ms(analysis)
    yield "Time of the exchange a step, an estimate from the links' rates"
    yield f"  without codecs   {u.time(times.plain_ms)}"
    missing = f.uncounted_codecs(analysis)
    coding = "encode and decode NOT COUNTED" if missing else f"encode {u.time(encode)}, decode {u.time(decode)}"
    yield f"  with the policy  {u.time(times.quantized_ms)}: wire {u.time(wire)}, {coding}"
    said = []
    if times.slower:
        yield f"  {f.slower_words(analysis)}"
    elif times.quantized_ms < times.plain_ms:
        most = "at most " if missing else ""
        ratio = f"{times.plain_ms / times.quantized_ms:.2f}" if times.quantized_ms else ""
        said.append(f"{most}{ratio} times as fast" if ratio else "nothing left to send")
    said += [f"no speed is known of {', '.join(missing)}"] if missing else []
    if said:
        yield "  " + u.shortened("; ".join(said), WIDTH - 2)
    beside = [f"ids {u.time(times.ids_ms)}", f"data-parallel gradients {u.time(times.dense_ms)}"]
    beside += [f"weight sync of 2D {u.time(times.sync_ms)}"] if analysis.forecast.job.replicas else []
    yield f"  beside it, untouched by codecs: {', '.join(beside)}"
    yield from (f"  {u.shortened(words, WIDTH - 2)}" for words in bottleneck_words(analysis))


def _loads(analysis: Analysis) -> Iterator[str]:
    yield "Load of the ranks (max/mean: 1 is even; plain: without codecs; *: forward, own shares left out)"
    lines = [["", "max/mean", "plain", "ranks", "tables that weigh most on the first of them"]]
    for load in f.loads_of(analysis):
        plain = f.plain_max_over_mean(analysis, load)
        name = f.load_name(load) + (" *" if "bytes" in load.what else "")
        ranks = ", ".join(map(str, load.worst[:3])) if load.worst else "even"
        tables = [f"{u.shortened(table, 20)} {100 * part:.0f} %" for table, part in f.heavy_tables(load, 2)]
        lines.append([name, f"{load.max_over_mean:.3f}", "" if plain is None else f"{plain:.3f}", ranks, ", ".join(tables)])
    yield aligned(lines, left={"", "ranks", lines[0][-1]}, indent="  ")


def _advice(advice: tuple[Advice, ...], count: int) -> Iterator[str]:
    if not advice:
        yield "Advice: none"
        return
    more = f"; {len(advice) - count} more below" if len(advice) > count else ""
    yield f"What to do next, the largest predicted gain first{more}"
    for number, each in enumerate(advice[:count], start=1):
        gain = f"{u.time(each.gain_ms)} a step: " if each.gain_ms > 0 else ""
        line = f"  {number}. {gain}{each.title}"
        yield line if len(line) <= WIDTH else f"{line[: WIDTH - 6]} [...]"
        yield from textwrap.wrap(each.because, WIDTH, initial_indent=" " * 5, subsequent_indent=" " * 5, max_lines=1)
