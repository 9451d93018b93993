"""The text report: what its first screen says, how large it is, and that it names what it leaves out."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.planner.jobs import whole
from tests.report.analyses import COMMON_CASES, analysis_of, slower, with_name, without_tables
from torchrec_qcomm.planner import build_topology, machines_of, units
from torchrec_qcomm.planner.analysis import analyse
from torchrec_qcomm.planner.findings.results import Advice, Analysis, Crossing, Times
from torchrec_qcomm.planner.job import Job, Machines
from torchrec_qcomm.policy import Policy, Rule
from torchrec_qcomm.report import figures
from torchrec_qcomm.report.bottleneck import bottleneck
from torchrec_qcomm.report.figures import SLOWER
from torchrec_qcomm.report.text.page import report_text, summary_text

CASES = {
    **COMMON_CASES,
    "long name": with_name("model.sparse_arch.embedding_bag_collection." + "x" * 200),
    "many codecs": analysis_of(
        8, 4, 40, Policy("int8", "int8", tuple(Rule(tables=f"t_{i}", forward=c) for i, c in enumerate(
            ("int4", "int2", "fp16", "bf16", "fp8_e4m3", "natural", "qsgd"))))
    ),
}  # fmt: skip


def lines_of(analysis: Analysis, start: str) -> list[list[str]]:
    """The cells of the lines that begin with a word."""
    return [re.split(r"\s{2,}", line.strip()) for line in report_text(analysis).splitlines() if line.strip().startswith(start)]


@pytest.mark.parametrize("analysis", CASES.values(), ids=CASES)
def test_one_screen_and_its_width(analysis: Analysis) -> None:
    many = tuple(Advice("rule", "do this " * 30, "for this " * 30, "a: b", 1.0) for _ in range(9))
    for each in (
        analysis,
        replace(analysis, advice=()),
        replace(analysis, advice=many, loads=analysis.loads + analysis.loads[:4]),
    ):
        summary = summary_text(each, "a/path/" * 30)
        assert len(summary.splitlines()) <= 40
        report = report_text(each, "a/path/" * 30)
        assert report.startswith(summary)
        assert [line for line in report.splitlines() if len(line) > 100 or line != line.rstrip()] == []


def test_bytes_before_and_after_are_those_of_the_codecs() -> None:
    """Rows of dim D take 4 D bytes as FP32, D + 8 as INT8, and D + 1 as FP8."""
    analysis = analysis_of(8, 4, 1, batch_size=100)
    dim = analysis.forecast.job.tables[0].table.dim
    text = summary_text(analysis)
    (forward,), (backward,) = (
        [line.split() for line in text.splitlines() if line.startswith(f"  {way} ") and "%" in line]
        for way in ("forward", "backward")
    )
    for cells, row in ((forward, dim + 8), (backward, dim + 1)):
        before, after = 800 * 4 * dim, 800 * row
        assert float(cells[1]) == pytest.approx(before / 1e3, rel=5e-3)
        assert float(cells[3]) == pytest.approx(after / 1e3, rel=5e-3)
        assert cells[5] == f"{100 * (1 - after / before):.1f}"
        assert cells[2] == cells[4] == "kB"


def test_shares_are_told_with_and_without_a_ranks_own() -> None:
    """One table-wise table, 8 ranks on hosts of 4, both directions of one size: 1/8, 3/8, 4/8, and 3/7, 4/7."""
    text = summary_text(analysis_of(8, 4, 1, Policy("int8", "int8")))
    counted, left_out = (line for line in text.splitlines() if line.startswith("  share"))
    assert "a rank's own counted" in counted
    assert re.findall(r"[\d.]+ %", counted) == ["12.5 %", "37.5 %", "50.0 %"]
    assert "left out" in left_out
    assert re.findall(r"[\d.]+ %", left_out) == ["42.9 %", "57.1 %"]
    assert "with itself  inside a host  between hosts" in text


def test_three_link_classes_with_pods() -> None:
    text = summary_text(analysis_of(8, 2, 1, Policy("int8", "int8"), pod_hosts=2))
    assert "pods of 2 hosts" in text
    assert "inside a host  between hosts of a pod  between pods" in text
    (counted,) = (line for line in text.splitlines() if "own counted" in line)
    shares = [float(share) for share in re.findall(r"([\d.]+) %", counted)]
    assert shares == [12.5, 12.5, 25.0, 50.0]


def test_the_report_changes_with_the_size_of_a_pod() -> None:
    one, two, four = (analysis_of(8, 2, 1, Policy("int8", "int8"), pod_hosts=hosts) for hosts in (1, 2, 4))
    assert len({summary_text(one), summary_text(two), summary_text(four)}) == 3
    assert "between pods" not in summary_text(four)


def test_bytes_that_cross_hosts_are_told_by_table() -> None:
    """Table-wise tables on host 0 of 2: half of the ranks are on the other host, and so half of each table's bytes cross."""
    analysis = analysis_of(4, 2, 12, Policy("int8", "int8"))
    near = [table for table in analysis.forecast.tables if int(table.planned.ranks[0]) < 2]
    text = report_text(analysis).partition("Tables that cross hosts most")[2].partition("\n\n")[0]
    assert text.startswith(", with the policy: 5 of 12 that do")
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()[2:]]
    assert len(lines) == 5
    assert {line[3] for line in lines} == {"50.0 %"}
    sizes = {table.planned.table.name: 4 * 64 * (table.planned.table.dim + 8) for table in analysis.forecast.tables}
    for name, ranks, crosses, _, part in lines:
        assert crosses == units.size(sizes[name])
        assert part == f"{100 * sizes[name] / sum(sizes.values()):.1f} %"
        assert (int(ranks) < 2) == (name in {table.planned.table.name for table in near})
    assert "cross hosts most" not in report_text(analysis_of(4, None)) + report_text(analysis_of(4, 4))


def test_unknown_hosts_are_said_and_no_share_is_told() -> None:
    text = summary_text(analysis_of(4, None))
    assert "not known: nothing says how many ranks a host has" in text
    assert "share, a rank's own" not in text
    assert "inside a host" not in text


def test_slower_is_said_plainly() -> None:
    assert f"{SLOWER} by 300 ms" in summary_text(slower())
    assert "times as fast" not in summary_text(slower())
    faster = analysis_of(96, 8, 200)
    assert SLOWER not in summary_text(faster)
    expected = faster.times.plain_ms / faster.times.quantized_ms
    assert f"  {expected:.2f} times as fast" in summary_text(faster)


@pytest.mark.parametrize(
    ("changes", "what", "cure"),
    [
        ({}, "bytes between hosts", "fewer bits help"),
        ({"limit": "intra_host"}, "bytes inside hosts", "fewer bits help"),
        ({"encode_ms": 9.0, "decode_ms": 1.0}, "encode and decode", "fewer bits do not help"),
        ({"ids_ms": 50.0}, "ids", "codecs do not help"),
        ({"dense_ms": 50.0}, "data-parallel gradients", "codecs do not help"),
        ({"sync_ms": 50.0}, "weight sync of 2D", "codecs do not help"),
    ],
)
def test_the_next_bottleneck_is_what_takes_longest(changes: dict[str, object], what: str, cure: str) -> None:
    """Two collectives of 4 ms on the wire and 0.1 ms of coding each; 0.5 ms of ids and 0.25 of gradients beside them."""
    analysis = analysis_of()
    beside = {name: value for name, value in changes.items() if name in ("ids_ms", "dense_ms", "sync_ms")}
    inside = {name: value for name, value in changes.items() if name not in beside}
    each = [
        replace(one, **{"wire_ms": 4.0, "encode_ms": 0.05, "decode_ms": 0.05, **inside}) for one in analysis.times.collectives
    ]
    times = replace(analysis.times, collectives=tuple(each), **beside)
    analysis = replace(analysis, times=times)
    everything = times.quantized_ms + times.ids_ms + times.dense_ms + times.sync_ms
    longest = {"bytes": 8.0, "encode and decode": 20.0}.get("bytes" if "bytes" in what else what, 50.0)
    said = f"  next bottleneck: {what}, {100 * longest / everything:.0f} % of {units.time(everything)} in all; {cure}"
    assert said in summary_text(analysis).splitlines()
    assert bottleneck(analysis).share == pytest.approx(longest / everything)


def test_uneven_lookups_are_told_as_what_codecs_do_not_change() -> None:
    """By what was counted, if something was."""
    analysis = analysis_of()
    measured = next(load for load in analysis.loads if load.measured)
    head = "  not timed, and no codec changes it: lookups, 3.31 x the mean at rank"
    assert f"{head} {measured.worst[0]} (t_0 75 %), measured" in summary_text(analysis).splitlines()
    assumed = replace(analysis, loads=tuple(load for load in analysis.loads if not load.measured))
    assert f"{head} 4 (t_0 75 %), assumed" in summary_text(assumed).splitlines()
    assert "no codec changes it" not in summary_text(analysis_of(1, 1))
    assert "bottleneck" not in summary_text(replace(analysis, times=Times((), 0.0, 0.0, 0.0, {}, {})))


def test_default_rates_are_told_to_be_torchrecs() -> None:
    given = analysis_of()
    assert "one way: 450 GB/s inside a host, 50 GB/s between hosts\n" in report_text(given)
    job = given.forecast.job
    torchrecs = replace(job, machines=machines_of(build_topology(8, 4, "cuda", inter_host_gb_per_s=25))[0])
    text = report_text(replace(given, forecast=replace(given.forecast, job=torchrecs)))
    assert "one way: 644 GB/s inside a host (TorchRec's default), 25 GB/s between hosts\n" in text


def test_imbalances_name_ranks_and_tables() -> None:
    text = summary_text(analysis_of())
    lines = {line[2:20].strip(): line for line in text.splitlines() if line.startswith("  lookups")}
    assumed, measured = lines["lookups (assumed)"], lines["lookups (measured)"]
    assert re.findall(r"[\d.]+", assumed)[0] == "3.310"
    assert "4, 5, 7" in assumed
    assert "3, 2, 0" in measured
    assert "t_0 75 %" in assumed
    even = analysis_of(1, 1)
    assert next(line for line in summary_text(even).splitlines() if line.startswith("  memory")).split()[1:] == [
        "1.000",
        "even",
    ]


def test_tables_that_are_not_shown_are_counted() -> None:
    analysis = analysis_of(8, 4, 30)
    assert "Tables, most bytes first: 20 of 30" in report_text(analysis)
    (said,) = (line for line in report_text(analysis, tables=7).splitlines() if "not shown" in line)
    hidden = figures.table_figures(analysis)[7:]
    assert said.startswith("  not shown: 23 tables")
    before, after = (sum(getattr(table, side) for table in hidden) for side in ("total_before", "total_after"))
    assert f"{100 * (1 - after / before):.1f} % saved" in said
    assert "not shown" not in report_text(analysis, tables=30)


def test_codecs_of_a_table_that_differ_by_link_are_all_named() -> None:
    policy = Policy("int8", "int8", (Rule(link="intra_host", forward="bf16"),))
    (table, *_) = figures.table_figures(analysis_of(8, 4, 2, policy))
    assert table.codecs == {"forward": ("bf16", "int8"), "backward": ("int8",)}
    (alone, *_) = figures.table_figures(analysis_of(4, 4, 2, policy))
    assert alone.codecs["forward"] == ("bf16",)  # nothing crosses hosts


def test_tables_of_one_name_are_told_apart_by_their_module() -> None:
    analysis = analysis_of(8, 4, 2)
    first, second = analysis.forecast.tables
    other = replace(first, planned=replace(first.planned, module="model.ec"))
    both = replace(analysis.forecast, tables=(first, other, second))
    plain = replace(analysis.plain, tables=(*analysis.plain.tables[:1], *analysis.plain.tables))
    labels = {table.label for table in figures.table_figures(replace(analysis, forecast=both, plain=plain))}
    assert labels == {"model.ebc.t_0", "model.ec.t_0", "t_1"}


def test_what_lies_beside_the_exchange() -> None:
    text = report_text(analysis_of())
    beside = text.partition("Beside the exchange")[2]
    ids = analysis_of().forecast.ids_sent.sum()
    assert f"input dist): {ids / 1e3:.0f} kB a step, all ranks" in beside
    assert "gradients of data-parallel tables: 4.10 kB a step, from each rank to an all-reduce; 0.25 ms" in beside
    assert "2D replicas" not in beside


def test_assumptions_notes_and_advice_are_printed_whole() -> None:
    text = report_text(analysis_of())
    for said in (
        "pooling factor 1 for all tables: nothing said otherwise",
        "ids are drawn <evenly>",
        "[lower_precision, about 1.5 ms",
    ):
        assert said in text
    assert "         rules:\n           - {tables: t_0}" in text


def test_nothing_is_divided_by_nothing() -> None:
    text = report_text(without_tables())
    assert "nothing is exchanged" in text
    assert "nan" not in text
    assert lines_of(without_tables(), "both")[0][1:] == ["0 B", "0 B", "-"]
    empty = replace(analysis_of(), crossing=Crossing(np.zeros(5), True))
    assert "nan" not in report_text(empty)


def test_large_numbers_are_wrapped_too() -> None:
    """Ids of 512 tables on as many ranks; only what is to be pasted may be wider."""
    analysis = analyse(Job(tuple(whole(f"t{i}", i) for i in range(512)), Machines(512, 8), 8, Policy("int8", "int8")))
    settings = {line.strip() for advice in analysis.advice for line in advice.setting.splitlines()}
    assert [line for line in report_text(analysis).splitlines() if len(line) > 100 and line.strip() not in settings] == []
