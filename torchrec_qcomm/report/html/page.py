"""An analysis as one HTML file that needs nothing else: text and inline SVG, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from torchrec_qcomm.planner import units as u
from torchrec_qcomm.planner.findings.crossing import across_hosts
from torchrec_qcomm.planner.findings.results import Analysis
from torchrec_qcomm.planner.forecast.results import MATRIX_RANKS
from torchrec_qcomm.planner.job import REACHES
from torchrec_qcomm.policy import Direction
from torchrec_qcomm.report import figures as f
from torchrec_qcomm.report.bottleneck import bottleneck_words
from torchrec_qcomm.report.html import svg

MATRIX_HOSTS = 512
"""Hosts up to which there is a heat map."""

_CLASSES = (
    *(f"h{shade}" for shade in range(svg.SHADES + 1)),
    *("before", "after", "bar", "marked", "wire", "encode", "decode", *REACHES),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A section of pictures.

    Attributes:
        title: its heading.
        said: what it shows, in a sentence or two.
        key: for each colour, its CSS class and what it stands for.
        pictures: ``(heading or nothing, picture)``.
    """

    title: str
    said: str
    pictures: tuple[tuple[str, Markup], ...]
    key: tuple[tuple[str, str], ...] = field(default=())


def report_html(analysis: Analysis, title: str = "", tables: int = 200, charted: int = 30) -> str:
    """The page.

    Args:
        analysis: what was found.
        title: such as the name of the config.
        tables: how many to list.
        charted: how many tables have bars.
    """
    job, all_tables = analysis.forecast.job, f.table_figures(analysis)
    shown = all_tables[:tables]
    return _template().render(
        title=title,
        classes=_CLASSES,
        machines=f.machine_words(job.machines),
        batch=f"{job.batch_size:,}",
        table_count=f"{len(all_tables):,}",
        shardings=", ".join(f"{count:,} {name}" for name, count in f.sharding_counts(all_tables)) or "none",
        rows=f"{sum(planned.table.rows for planned in job.tables):,}",
        codecs=[(str(direction), f.codec_words(all_tables, direction)) for direction in Direction],
        slower=f.slower_words(analysis),
        bottleneck=bottleneck_words(analysis),
        cards=list(_cards(analysis)),
        advice=analysis.advice,
        time=u.time,
        figures=list(_figures(analysis, all_tables, charted)),
        tables=[_row(table) for table in shown],
        tables_said=_tables_said(all_tables, len(shown)),
        beside=f.beside_words(analysis),
        assumptions=job.assumptions,
        notes=f.other_notes(analysis),
        speeds=[
            f"{name}: encode {u.digits(encode)}, decode {u.digits(decode)} ({how})"
            for name, (encode, decode, how) in sorted(analysis.times.codec_speeds.items())
        ],
    )


@cache
def _template() -> Template:
    # Escaped, because users choose the names of tables and titles.
    loader = PackageLoader("torchrec_qcomm.report.html", "")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True).get_template("page.html.j2")


def _cards(analysis: Analysis) -> Iterator[tuple[str, str, str]]:
    before, after = f.sent_bytes(analysis.plain), f.sent_bytes(analysis.forecast)
    gain = u.share(u.saved(before, after))
    yield "bytes a step, all ranks", u.size(after), f"{u.size(before)} without codecs: {gain} saved; own shares counted"
    counted, left_out = (analysis.crossing.shares(include_self) for include_self in (True, False))
    if counted is None or left_out is None:
        yield "bytes that cross hosts", "not known", "nothing says how many ranks a host has"
    else:
        own, across = u.share(across_hosts(counted)), u.share(across_hosts(left_out))
        yield "bytes that cross hosts", across, f"a rank's own share left out; {own} with it"
    times, missing = analysis.times, f.uncounted_codecs(analysis)
    coding = f"without encode and decode of {', '.join(missing)}: speeds not known" if missing else "coding included"
    yield "time of the exchange a step", u.time(times.quantized_ms), f"{u.time(times.plain_ms)} without codecs; {coding}"
    if loads := f.loads_of(analysis):
        worst = max(loads, key=lambda load: load.max_over_mean)
        ranks = f"ranks {', '.join(map(str, worst.worst[:3]))}" if worst.worst else "even"
        most = "".join(f"; {u.shortened(table, 24)} {100 * part:.0f} %" for table, part in f.heavy_tables(worst, 1))
        yield f"most uneven: {f.load_name(worst)}", f"{worst.max_over_mean:.2f}", f"max/mean; {ranks}{most}"


def _figures(analysis: Analysis, tables: list[f.TableFigures], charted: int) -> Iterator[Figure]:
    yield _links(analysis)
    yield _times(analysis)
    if f.loads_of(analysis):
        yield _loads(analysis)
    yield _ranks(analysis)
    yield _hosts(analysis)
    if tables:
        yield _tables(tables, charted)


def _links(analysis: Analysis) -> Figure:
    machines = analysis.forecast.job.machines
    reaches = f.present_reaches(machines)
    rows = []
    for direction in Direction:
        for words, side in (("without codecs", analysis.plain), ("with the policy", analysis.forecast)):
            wire = f.reach_bytes(side, direction)
            total = float(wire.sum())
            parts = [
                (float(wire[REACHES.index(reach)]), str(reach), f"{direction} {words}, {f.reach_name(reach, machines)}: ")
                for reach in reaches
            ]
            titled = tuple((value, css, title + u.size(value)) for value, css, title in parts)
            rows.append(svg.Bar(f"{direction} {words}", titled, u.size(total), gap=words == "without codecs"))
    picture = svg.bars(rows, u.size, "bytes a step, of all ranks")
    said = "How far bytes go. A rank's share with itself is counted, and has a colour of its own."
    key = tuple((str(reach), f.reach_name(reach, machines)) for reach in reaches)
    return Figure("Bytes by link", said, (("", Markup(picture)),), key)


def _times(analysis: Analysis) -> Figure:
    times = analysis.times
    wire, encode, decode = f.coding_ms(analysis)
    plain = ((times.plain_ms, "before", f"moving bytes without codecs: {u.time(times.plain_ms)}"),)
    coded = tuple(
        (value, css, f"{words}: {u.time(value)}")
        for value, css, words in ((wire, "wire", "moving bytes"), (encode, "encode", "encode"), (decode, "decode", "decode"))
    )
    rows = [
        svg.Bar("without codecs", plain, u.time(times.plain_ms)),
        svg.Bar("with the policy", coded, u.time(times.quantized_ms)),
        *(
            svg.Bar(name, ((value, "bar", f"{name}: {u.time(value)}"),), u.time(value), gap=name == "ids, beside it")
            for name, value in (
                ("ids, beside it", times.ids_ms),
                ("data-parallel gradients", times.dense_ms),
                *((("weight sync of 2D", times.sync_ms),) if analysis.forecast.job.replicas else ()),
            )
        ),
    ]
    said = "Estimates from the links' rates; the sum of the collectives of both directions, each at its slowest rank."
    if missing := f.uncounted_codecs(analysis):
        said += f" Not counted, for no speed is known: encode and decode of {', '.join(missing)}."
    key = (("before", "moving bytes as they are"), ("wire", "moving encoded bytes"), ("encode", "encode"), ("decode", "decode"))
    return Figure("Time of a step's exchange", said, (("", Markup(svg.bars(rows, u.time, "ms a step"))),), key)


def _loads(analysis: Analysis) -> Figure:
    pictures = []
    for load in f.loads_of(analysis):
        above = f.ranks_above(load)
        more = f" and {len(above) - len(load.worst):,} more" if len(above) > len(load.worst) else ""
        ranks = f"most loaded: ranks {', '.join(map(str, load.worst))}{more}" if load.worst else "even"
        plain = f.plain_max_over_mean(analysis, load)
        without = "" if plain is None else f" ({plain:.3f} without codecs)"
        head = f"{f.load_name(load).capitalize()}: max/mean {load.max_over_mean:.3f}{without}, {ranks}"
        words = u.size if load.unit.startswith("B") else (lambda value: u.scaled(value, "").strip())
        picture = svg.columns(load.per_rank, "rank", load.unit, words, above)
        if tables := f.heavy_tables(load, 3):
            listed = ", ".join(f"{table} {100 * part:.0f} %" for table, part in tables)
            head += f" (rank {load.worst[0]}: {listed})"
        pictures.append((head, Markup(picture)))
    said = (
        "A bar is a rank, the dashed line the mean. Bytes are those of the forward exchange, without a rank's share with "
        "itself: what a rank sends of its lookups it is sent of their gradients."
    )
    key = (("bar", "a rank"), ("marked", "a rank above 1.1 times the mean"))
    return Figure("Load of each rank", said, tuple(pictures), key)


def _ranks(analysis: Analysis) -> Figure:
    machines = analysis.forecast.job.machines
    if machines.world_size > MATRIX_RANKS:
        said = f"Left out: more than {MATRIX_RANKS} ranks. Hosts below."
        return Figure("From rank to rank", said, ())
    pairs = analysis.forecast.rank_matrix()
    said = "Bytes a step with the policy, both directions, by colour; a rank's share with itself is on the diagonal."
    if svg.lined(machines.world_size, machines.devices_per_host):
        said += f" Lines divide hosts of {machines.devices_per_host}."
    picture = svg.heat_map(np.asarray(pairs), "rank", u.size, machines.devices_per_host)
    return Figure("From rank to rank", said, (("", Markup(picture)),))


def _hosts(analysis: Analysis) -> Figure:
    machines = analysis.forecast.job.machines
    if machines.devices_per_host is None:
        return Figure("From host to host", "Left out: it is not known how many ranks a host has.", ())
    if machines.hosts > MATRIX_HOSTS:
        return Figure("From host to host", f"Left out: more than {MATRIX_HOSTS} hosts.", ())
    said = "Bytes a step with the policy, both directions, by colour; what stays inside a host is on the diagonal."
    group = machines.pod_hosts if machines.pod_hosts > 1 else None
    picture = svg.heat_map(analysis.forecast.hosts(), "host", u.size, group)
    return Figure("From host to host", said, (("", Markup(picture)),))


def _tables(tables: list[f.TableFigures], charted: int) -> Figure:
    exchanged = [table for table in tables if table.total_before]
    shown, hidden = exchanged[:charted], exchanged[charted:]
    rows = [
        bar for table in shown for bar in svg.pair(u.shortened(table.label, 28), table.total_before, table.total_after, u.size)
    ]
    said = f"Both directions, of all ranks, a rank's share with itself counted: {len(shown)} of {len(tables):,} tables."
    if hidden:
        before, after = sum(table.total_before for table in hidden), sum(table.total_after for table in hidden)
        said += f" The other {len(hidden):,}: {u.size(before)} before, {u.size(after)} after."
    if still := len(tables) - len(exchanged):
        said += f" Not exchanged, so without bars: {still:,}."
    key = (("before", "without codecs"), ("after", "with the policy"))
    return Figure("Bytes of each table", said, (("", Markup(svg.bars(rows, u.size, "bytes a step"))),), key)


def _row(table: f.TableFigures) -> list[tuple[str, str]]:
    """The cells of a table's row, each with its CSS class."""
    codecs = [" / ".join(table.codecs[direction]) or "-" for direction in Direction]
    sides = [u.size(side[direction]) for direction in Direction for side in (table.before, table.after)]
    rate = "-" if table.break_even is None else u.digits(table.break_even)
    return [
        ("l", u.shortened(table.label, 60)),
        ("l", table.planned.sharding_type),
        ("", f"{table.planned.table.rows:,}"),
        ("", str(table.planned.table.dim)),
        ("l", codecs[0] if codecs[0] == codecs[1] else ", ".join(codecs)),
        *(("", size) for size in sides),
        ("", u.share(table.saved)),
        ("", "-" if table.across is None else u.size(table.across)),
        ("", rate),
        ("", u.scaled(table.lookups, "").strip()),
        ("", u.size(table.id_bytes)),
    ]


def _tables_said(tables: list[f.TableFigures], shown: int) -> str:
    rest = len(tables) - shown
    more = f"; {rest:,} more are in the JSON report" if rest else ""
    return (
        f"{shown} of {len(tables):,}, most bytes first{more}. Bytes are of a step and all ranks, own shares counted. "
        "Break-even: the rate of a rank above which moving the table plain is faster."
    )
