"""Forecasts beside a published case: intervals are computed from the assumptions, and misses are told."""

from __future__ import annotations

import published_case as case
import pytest

from tests.examples.conftest import ROOT, Launch

# One corner: p4d, 128 columns, ...
POINT = case.changed(
    case.ASSUMPTIONS, [f"{each.name}={each.high}:{each.high}" for each in case.ASSUMPTIONS if each.name != case.DIM]
)


def with_(*changes: str) -> list[tuple[float, float]]:
    return case.intervals(case.changed(POINT, [f"{case.DIM}=128:128", *changes]))[0]


def test_the_first_figure_is_fitted_and_others_are_not():
    found = with_()
    assert found[0] == pytest.approx((1.13, 1.13))
    assert all(low == high for low, high in found)  # a corner is a point


@pytest.mark.parametrize("assumption", [each.name for each in case.ASSUMPTIONS if each.name != case.INTRA])
def test_every_assumption_moves_some_figure(assumption: str):
    low = next(each.low for each in case.ASSUMPTIONS if each.name == assumption)
    moved = with_(f"{assumption}={low}:{low}")
    assert moved != with_()
    assert moved[0] == pytest.approx((1.13, 1.13))


def test_an_interval_covers_its_ends():
    ends = [with_(f"{case.WEIGHTS}={gb}:{gb}") for gb in (1, 20)]
    both = with_(f"{case.WEIGHTS}=1:20")
    for figure, (low, high) in enumerate(both):
        assert (low, high) == (min(end[figure][0] for end in ends), max(end[figure][1] for end in ends))
    scaling = [figure.name for figure in case.FIGURES].index("scaling, 2 nodes, FP8 and 2D")
    assert both[scaling][0] < both[scaling][1]


def test_figures_by_hand():
    # Of 16 destinations 8 are on the other node, of 8 on one node 7 are others: P bytes take 8/16 P / 50 and 7/8 P / 450.
    # Beside 2 x 512 bytes of a vector there are 8 of its length, which take the same way and no codec.
    found = with_(f"{case.IDS}=0:0", f"{case.AT_FP8}=0:0", f"{case.REACHED}=1:1")
    two, one = 8 / 16 / 50, 7 / 8 / 450
    assert found[6] == pytest.approx((78 * one / two,) * 2)
    assert found[7] == pytest.approx((100 * (1 - (128 + 8) / 512),) * 2)  # 8 bytes beside 128 codes
    scale = 78 / two * (1024 + 8) / 1024
    other = scale * (1.13 * two - 2 * one) / (2 - 1.13)
    assert found[-1] == pytest.approx((other,) * 2)
    # Four nodes: 24 of 32 destinations are on other nodes.
    four = 24 / 32 / 50
    assert found[3] == pytest.approx((4 * (other + one * scale) / (other + four * scale),) * 2)


def test_it_says_where_it_misses(launch: Launch):
    points = [f"--assume={each.name}={each.high}:{each.high}" for each in case.ASSUMPTIONS if each.name != case.DIM]
    run = launch(ROOT / "examples" / "published_case.py", *points, ranks=None)
    assert run.returncode == 0, run.stderr
    lines = {
        figure.name: line for figure in case.FIGURES for line in run.stdout.splitlines() if line.startswith(f"{figure.name}  ")
    }
    assert set(lines) == {figure.name for figure in case.FIGURES}
    assert lines["scaling, 2 nodes"].endswith("fitted")
    assert lines["scaling, 4 nodes"].endswith("MISSES: too high")
    assert "MISSES: at most" in lines["cut of the bytes by FP8, %"]
    assert all(each.name in run.stdout for each in case.ASSUMPTIONS)


def test_corners_without_a_fit_are_counted_or_refused():
    # As fast between nodes as inside: two nodes cannot be slower for it.
    with pytest.raises(SystemExit, match="none of these assumptions"):
        with_(f"{case.INTER}=450:450", f"{case.IDS}=0:0")
    # Rates go low or high together; only the slow machine can be fitted.
    some = case.changed(POINT, [f"{case.DIM}=128:128", f"{case.INTER}=6.25:450", f"{case.IDS}=0:0"])
    assert case.intervals(some)[1:] == (1, 2)
    assert any("1 of 2 corners of the ranges are left out" in line for line in case.report(some))


@pytest.mark.parametrize("change", ["nothing=1:2", "dim", "dim=x:2", f"{case.ROW}=1:2"])
def test_assumptions_that_are_none_are_refused(change: str):
    with pytest.raises(SystemExit, match="published_case"):
        case.changed(case.ASSUMPTIONS, [change])
