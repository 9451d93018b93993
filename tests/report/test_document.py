"""The report finds what is known of a real plan, and the reports in the documentation are of today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.report.document import POLICIES, ROOT, real_plan
from torchrec_qcomm.planner.analysis import analyse
from torchrec_qcomm.planner.findings.results import Analysis
from torchrec_qcomm.report import figures
from torchrec_qcomm.report.text.compare import comparison_text
from torchrec_qcomm.report.text.page import report_text, summary_text

REPORTS = ROOT / "docs" / "reports"


@pytest.fixture(scope="module")
def int8() -> Analysis:
    return analyse(real_plan().under(POLICIES["int8"]))


def test_memory_is_even_while_bytes_are_not(int8: Analysis) -> None:
    """HBM at most 1 % above the mean; output bytes 1.386 times, at rank 28: as TorchRec's own statistics of ranks say."""
    loads = {load.what: load for load in figures.loads_of(int8)}
    assert loads["planned memory"].max_over_mean == pytest.approx(1.01, abs=0.005)
    assert loads["planned memory"].worst == ()
    assert figures.plain_max_over_mean(int8, loads["bytes sent"]) == pytest.approx(1.386, abs=0.0005)
    assert loads["bytes sent"].worst[0] == 28
    summary = summary_text(int8)
    assert re.search(r"^  bytes sent \* +1\.415  1\.386  28, ", summary, re.MULTILINE)
    assert re.search(r"^  planned memory +1\.010 +even$", summary, re.MULTILINE)


def test_few_tables_have_most_ids(int8: Analysis) -> None:
    count, ids, _ = figures.busiest(figures.table_figures(int8))
    assert count == 19
    assert ids == pytest.approx(0.515, abs=0.0005)
    assert "the 19 tables with most ids, 1.0 % of all: 51.5 % of the ids looked up" in report_text(int8)


def test_most_tables_are_narrow_and_save_less(int8: Analysis) -> None:
    """57 % have 12 columns or fewer: INT8 rows of 4, 8 and 12 values are 12, 16 and 20 bytes in the place of 16, 32 and 48."""
    groups = figures.dim_groups(figures.table_figures(int8))
    assert [(group.high, group.tables) for group in groups[:3]] == [(4, 385), (8, 714), (12, 6)]
    assert groups[2].share == pytest.approx(0.571, abs=0.0005)
    for group, row in zip(groups[:3], (12 / 16, 16 / 32, 20 / 48), strict=True):
        assert group.after / group.before == pytest.approx(row)


ROWS = {"int8": lambda dim: dim + 8, "fp8": lambda dim: dim + 1, "int4": lambda dim: (dim + 1) // 2 + 4}


@pytest.mark.parametrize("codec", ROWS)
def test_savings_of_each_codec(codec: str, int8: Analysis) -> None:
    """Bytes of a shard's row, worked out here, weighted with the FP32 bytes of the tables of that dim."""
    analysis = int8 if codec == "int8" else analyse(real_plan().under(POLICIES[codec]))
    for table in figures.table_figures(analysis):
        dim = int(table.planned.shard_dims[0])
        assert table.total_after / table.total_before == pytest.approx(ROWS[codec](dim) / (4 * dim))
    saved = figures.u.share(figures.u.saved(figures.sent_bytes(analysis.plain), figures.sent_bytes(analysis.forecast)))
    assert saved == {"int8": "73.2 %", "fp8": "74.8 %", "int4": "86.6 %"}[codec]


def test_the_reports_are_of_today(int8: Analysis) -> None:
    page = (REPORTS / "real_plan_int8.txt").read_text()
    assert page == report_text(int8, "the real plan, int8", 10) + "\n"
    compared = comparison_text([("int8", int8)]).splitlines()
    written = (REPORTS / "real_plan_codecs.txt").read_text().splitlines()
    for line, row in zip(compared[3:], written[3:], strict=True):
        cells = re.split(r"\s{2,}", line.strip())
        assert re.split(r"\s{2,}", row.strip())[: len(cells)] == cells


@pytest.mark.parametrize("name", [path.name for path in sorted(REPORTS.iterdir()) if path.suffix != ".md"])
def test_every_report_is_linked_and_small(name: str) -> None:
    assert f"]({name})" in (REPORTS / "README.md").read_text()
    assert (REPORTS / name).stat().st_size < 1_500_000


@pytest.mark.parametrize("path", sorted(REPORTS.glob("*.txt")), ids=lambda path: path.name)
def test_no_number_has_an_exponent(path: Path) -> None:
    assert not re.findall(r"\d[eE][+-]?\d+", path.read_text())


def test_the_real_plan_has_the_rates_that_torchrec_takes(int8: Analysis) -> None:
    """600 and 12.5 GiB/s, written down in bytes a millisecond."""
    machines = int8.forecast.job.machines
    assert machines.intra_host_gb_per_s == pytest.approx(600 * 2**30 / 1e9)
    assert machines.inter_host_gb_per_s == pytest.approx(12.5 * 2**30 / 1e9)


def test_dlrm_crosses_hosts_as_known() -> None:
    """Uniform exchange on 2, 4 and 8 hosts: 1/2, 3/4, 7/8 of the bytes cross, a rank's own counted."""
    text = Path(REPORTS / "dlrm_dcnv2_hosts.txt").read_text()
    (line,) = (line for line in text.splitlines() if "own counted" in line)
    assert re.findall(r"[\d.]+ %", line) == ["50.0 %", "75.0 %", "87.5 %"]
