"""The page: one file that needs nothing else, whose pictures show what the forecast says, in light and dark."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.report.analyses import COMMON_CASES, analysis_of, slower, with_name
from torchrec_qcomm.planner import units as u
from torchrec_qcomm.planner.findings.results import Analysis
from torchrec_qcomm.report import figures
from torchrec_qcomm.report.bottleneck import bottleneck_words
from torchrec_qcomm.report.html import svg
from torchrec_qcomm.report.html.page import report_html

CASES = {
    **COMMON_CASES,
    "names": with_name('<script>alert("&")</script>'),
}
VOID = {"meta", "br", "link", "img", "input"}


class Page(HTMLParser):
    """All tags, the text, the titles of marks, and whether every tag is closed."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def pictures(source: str) -> dict[str, ElementTree.Element]:
    """Each picture by its label; well-formed XML."""
    found = (ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", source, re.DOTALL))
    return {picture.attrib["aria-label"]: picture for picture in found}


def marks(picture: ElementTree.Element) -> dict[str, str]:
    """The class of each mark by its title."""
    return {mark[0].text or "": mark.attrib["class"] for mark in picture.iter("rect") if len(mark)}


@pytest.mark.parametrize("analysis", CASES.values(), ids=CASES)
def test_one_file_that_is_whole_and_needs_nothing(analysis: Analysis) -> None:
    source = report_html(analysis, "a <b> & c")
    page = Page(source)
    assert {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "image", "use"} == set()
    assert not re.search(r"https?://|url\(|@import|src=|href=", source)
    assert "nan" not in "".join(page.text).lower()
    assert "Embedding exchange: a <b> & c" in "".join(page.text)
    assert "prefers-color-scheme: dark" in source
    used = {name for tag, attrs in page.tags for name in (attrs.get("class") or "").split()}
    styled = set(re.findall(r"\.([a-z_]\w*)", source.partition("<style>")[2].partition("</style>")[0]))
    assert used <= styled | {"l"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_is_there_in_both_schemes(scheme: str) -> None:
    """And text can be read: WCAG asks for a contrast of 4.5."""
    style = report_html(analysis_of()).partition("<style>")[2]
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    assert len(blocks) == 2
    light, dark = (dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in blocks)
    assert light.keys() == dark.keys()
    assert set(re.findall(r"var\(--(\w+)\)", style)) <= light.keys()
    colours = light if scheme == "light" else dark

    def brightness(name: str) -> float:
        channels = [int(colours[name][i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one: str, other: str) -> float:
        low, high = sorted((brightness(one), brightness(other)))
        return (high + 0.05) / (low + 0.05)

    for front, behind in (("fg", "bg"), ("dim", "bg"), ("fg", "card"), ("dim", "card"), ("warn", "warnbg")):
        assert contrast(front, behind) >= 4.5, (front, behind)
    for shade in range(svg.SHADES + 1):  # the numbers in cells of hosts
        assert contrast("on" if shade > svg.SHADES // 2 else "fg", f"h{shade}") >= 3, shade
    steps = [brightness(f"h{shade}") for shade in range(svg.SHADES + 1)]
    assert steps == sorted(steps, reverse=scheme == "light")


def test_heat_maps_have_a_cell_for_each_pair() -> None:
    analysis = analysis_of(96, 8, 400)
    shown = pictures(report_html(analysis))
    for what, values in (("rank", analysis.forecast.rank_matrix()), ("host", analysis.forecast.hosts())):
        cells = marks(shown[f"bytes from each {what} to each other {what}"])
        assert len(cells) == values.size
        shades = {title: int(css[1:]) for title, css in cells.items()}
        most, least = (np.unravel_index(at, values.shape) for at in (values.argmax(), values.argmin()))
        assert shades[f"{what} {most[0]} to {most[1]}: {u.size(values.max())}"] == svg.SHADES
        assert shades[f"{what} {least[0]} to {least[1]}: {u.size(values.min())}"] == min(shades.values())
    texts = [text.text for text in shown["bytes from each rank to each other rank"].iter("text")]
    assert {"source rank", "destination rank", "88", "even steps"} <= set(texts)
    assert u.size(analysis.forecast.rank_matrix().max()) in texts  # the legend


def test_large_heat_maps_are_paths_that_cover_all_cells() -> None:
    values = np.random.default_rng(0).integers(0, 5, (200, 200)).astype(float)
    picture = ElementTree.fromstring(svg.heat_map(values, "rank", u.size))
    painted = {path.attrib["class"]: path.attrib["d"] for path in picture.iter("path") if path.attrib["class"][0] == "h"}
    shades = svg.scale_of(values).shade(values)
    again = np.full(values.shape, -1)
    for css, d in painted.items():
        for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\d+z", d):
            again[int(y), int(x) : int(x) + int(width)] = int(css[1:])
    assert np.array_equal(again, shades)
    assert len(marks(picture)) == 200
    assert any(title.startswith("rank 7 sends ") for title in marks(picture))


def test_scales() -> None:
    even = svg.scale_of(np.array([0.0, 10, 45, 80]))
    assert (even.words, even.shade(np.array([0.0, 10, 10.1, 45, 80])).tolist()) == ("even steps", [0, 1, 2, 5, 8])
    wide = svg.scale_of(np.array([1.0, 1, 1, 10, 100, 1e8]))
    assert wide.words == "even ratios"
    assert wide.shade(np.array([0.0, 1, 10, 11, 100, 1e8])).tolist() == [0, 1, 1, 2, 2, 8]
    close = svg.scale_of(np.array([0.0, 100, 101, 107, 108]))
    assert close.words == "even steps, not from 0"
    assert close.shade(np.array([0.0, 100, 101, 107, 108])).tolist() == [0, 1, 1, 7, 8]
    assert svg.scale_of(np.full(3, 7.0)).shade(np.full(3, 7.0)).tolist() == [1, 1, 1]
    assert svg.scale_of(np.zeros(3)).shade(np.zeros(3)).tolist() == [0, 0, 0]


def test_bars_of_tables_before_and_after() -> None:
    analysis = analysis_of(8, 4, 40)
    page = report_html(analysis, charted=5)
    shown = marks(pictures(page)["bytes a step"])
    tables = figures.table_figures(analysis)
    assert [title for title, css in shown.items() if css == "after"] == [
        f"{table.label} with the policy: {u.size(table.total_after)}" for table in tables[:5]
    ]
    assert f"{tables[0].label} without codecs: {u.size(tables[0].total_before)}" in shown
    assert "5 of 40 tables. The other 35: " in page


def test_loads_mark_the_ranks_at_fault() -> None:
    analysis = analysis_of(16, 4, 20)
    sources = re.findall(r"<svg.*?</svg>", report_html(analysis).partition("Load of each rank")[2], re.DOTALL)
    for load, source in zip(analysis.loads, sources, strict=False):
        bars = marks(ElementTree.fromstring(source))
        assert len(bars) == 16
        marked = {int(re.findall(r"rank (\d+)", title)[0]) for title, css in bars.items() if css == "marked"}
        assert marked == {rank for rank, value in enumerate(load.per_rank) if load.worst and value > 1.1 * load.per_rank.mean()}
        assert marked >= set(load.worst[:1])
        assert f">{load.unit}</text>" in source


def test_loads_of_many_ranks_share_bars() -> None:
    values = np.arange(4096.0)
    source = svg.columns(values, "rank", "B", u.size, marked=(4095,))
    bars = marks(ElementTree.fromstring(source))
    assert len(bars) == 512
    assert bars["rank 4095: 4.09 kB"] == "marked"
    assert "each bar: the largest of 8" in source


def test_ranks_that_are_not_named_are_counted() -> None:
    """Half of 16 ranks have it all: 3 are named, and all 8 have the colour of what is above 1.1 times the mean."""
    whole = analysis_of(16, 4, 20)
    load = replace(whole.loads[0], per_rank=np.repeat([2.0, 0.0], 8), worst=(0, 1, 2))
    page = report_html(replace(whole, loads=(load,)))
    assert "most loaded: ranks 0, 1, 2 and 5 more (rank 0: t_0 75 %, t_1 20 %)" in page
    (picture,) = (source for source in re.findall(r"<svg.*?</svg>", page, re.DOTALL) if ">ids a step</text>" in source)
    assert sorted(marks(ElementTree.fromstring(picture)).values()) == ["bar"] * 8 + ["marked"] * 8


def test_tables_that_are_not_exchanged_have_no_bars() -> None:
    whole = analysis_of(8, 4, 6)
    first, *rest = whole.plain.tables
    nothing = replace(first, wire={way: 0 * wire for way, wire in first.wire.items()})
    page = report_html(replace(whole, plain=replace(whole.plain, tables=(nothing, *rest))))
    assert "5 of 6 tables. Not exchanged, so without bars: 1." in page
    assert not any(title.startswith("t_0 ") for title in marks(pictures(page)["bytes a step"]))


def test_the_next_bottleneck_stands_on_top() -> None:
    page = report_html(analysis_of())
    above = page.partition("What to do next")[0]
    for words in bottleneck_words(analysis_of()):
        assert f"<p>{words[0].upper()}{words[1:]}.</p>" in above


def test_links_are_stacked_before_and_after() -> None:
    analysis = analysis_of(16, 2, pod_hosts=2)
    page = report_html(analysis)
    bars = marks(pictures(page)["bytes a step, of all ranks"])
    assert len(bars) == 16  # two directions, before and after, four reaches
    assert set(bars.values()) == {"self", "intra_host", "intra_pod", "inter_pod"}
    for words in ("with itself", "inside a host", "between hosts of a pod", "between pods"):
        assert f"</i>{words}</span>" in page


def test_what_is_left_out_is_said() -> None:
    page = report_html(analysis_of(4, None, 300), tables=100)
    assert "Left out: it is not known how many ranks a host has." in page
    assert "100 of 300, most bytes first; 200 more are in the JSON report" in page
    whole = analysis_of(2, 1)
    many = replace(whole.forecast.job.machines, world_size=1024, devices_per_host=1)
    far = replace(whole.forecast, job=replace(whole.forecast.job, machines=many))
    page = report_html(replace(whole, forecast=far))
    assert "Left out: more than 512 ranks" in page
    assert "Left out: more than 512 hosts" in page


def test_slower_stands_on_top() -> None:
    page = report_html(slower())
    assert f'<p class="warn">{figures.SLOWER} by 300 ms a step' in page
    assert figures.SLOWER not in report_html(analysis_of(96, 8, 200))


def test_the_page_of_96_ranks_is_small() -> None:
    assert len(report_html(analysis_of(96, 8, 1935)).encode()) < 1_500_000
