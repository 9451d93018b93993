"""The JSON report: its keys, its size, and that it says what the forecast says."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.report.analyses import analysis_of, machines, slower, without_tables
from torchrec_qcomm.planner.findings.results import Analysis, Load, Times
from torchrec_qcomm.planner.forecast.results import ExchangeForecast
from torchrec_qcomm.planner.job import REACHES
from torchrec_qcomm.policy import Direction, Policy, Rule, Where
from torchrec_qcomm.report import json as as_json
from torchrec_qcomm.report.bottleneck import bottleneck
from torchrec_qcomm.report.json import SCHEMA_VERSION, report_json

KEYS = {
    *("schema_version", "title", "units", "reaches", "job", "totals", "crossing", "times", "loads", "advice", "tables"),
    *("exchanges", "ranks", "host_matrix", "rank_matrix", "assumptions", "notes"),
}


def read(analysis: Analysis) -> dict:
    return json.loads(report_json(analysis, "a config"), parse_constant=lambda name: pytest.fail(name))


def test_keys_and_version() -> None:
    said = read(analysis_of())
    assert set(said) == KEYS
    assert said["schema_version"] == SCHEMA_VERSION == 1
    assert said["title"] == "a config"
    assert said["reaches"] == ["self", "intra_host", "intra_pod", "inter_pod", "unknown"]


def test_the_same_analysis_gives_the_same_text() -> None:
    assert report_json(analysis_of(16, 4, 30)) == report_json(analysis_of(16, 4, 30))
    assert report_json(analysis_of(16, 4, 30)) != report_json(analysis_of(16, 4, 30, seed=1))


def test_arrays_are_those_of_the_forecast() -> None:
    analysis = analysis_of(16, 4, 30)
    said = read(analysis)
    for name, side in (("before", analysis.plain), ("after", analysis.forecast)):
        for way in Direction:
            assert np.array_equal(said["ranks"]["sent"][name][way], side.sent((way,)))
            assert np.array_equal(said["ranks"]["received"][name][way], side.received((way,)))
            assert np.array_equal(said["host_matrix"][name][way], side.hosts((way,)))
            assert np.array_equal(said["rank_matrix"][name][way], side.rank_matrix((way,)))
            assert said["totals"][way][name] == side.sent((way,)).sum()
            assert sum(table[name][way] for table in said["tables"]) == side.sent((way,)).sum()
            assert sum(np.sum(each[name]) for each in said["exchanges"] if each["direction"] == way) == side.sent((way,)).sum()
    assert np.array_equal(said["ranks"]["lookups"], analysis.forecast.lookups)
    assert said["totals"]["both"]["saved_share"] == pytest.approx(
        1 - analysis.forecast.sent().sum() / analysis.plain.sent().sum(), abs=1e-6
    )
    assert [load["max_over_mean"] for load in said["loads"]] == pytest.approx(
        [load.max_over_mean for load in analysis.loads], abs=1e-6
    )
    assert sum(said["crossing"]["shares_with_self"]) == pytest.approx(1)
    assert sum(said["crossing"]["shares_without_self"]) == pytest.approx(1)
    assert said["crossing"]["shares_without_self"][0] == 0


def test_tables_and_policy() -> None:
    policy = Policy("int8", "none", (Rule("t_[01]", Where(min_dim=4), "inter_host", forward="int4"),))
    said = read(analysis_of(8, 4, 5, policy))
    assert said["job"]["policy"] == {
        "default": {"forward": "int8", "backward": "none"},
        "rules": [{"tables": ["t_[01]"], "where": {"min_dim": 4}, "link": "inter_host", "forward": "int4", "backward": None}],
    }
    table = next(table for table in said["tables"] if table["name"] == "t_0")
    assert table["codecs"] == {"forward": ["int8", "int4"], "backward": ["none"]}
    assert (table["sharding_type"], table["shards"], table["payload"]) == ("table_wise", 1, "float32")
    assert table["break_even_gb_per_s"] == 123.4
    assert next(table for table in said["tables"] if table["name"] == "t_1")["break_even_gb_per_s"] is None


def test_what_is_not_known_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    said = read(analysis_of(4, None))
    assert "not known" in said["host_matrix"]["left_out"]
    assert (said["job"]["hosts"], said["crossing"]["known"], said["crossing"]["shares_with_self"]) == (None, False, None)
    assert "forward" in said["rank_matrix"]["after"]
    monkeypatch.setattr(as_json, "MATRIX_RANKS", 3)
    assert read(analysis_of(4, 2))["rank_matrix"] == {"left_out": "more than 3 ranks"}
    monkeypatch.setattr(as_json, "MATRIX_HOSTS", 1)
    assert read(analysis_of(4, 2))["host_matrix"] == {"left_out": "more than 1 hosts"}


def test_the_next_bottleneck() -> None:
    analysis = analysis_of()
    found = bottleneck(analysis)
    said = read(analysis)["times"]["bottleneck"]
    assert said == {"what": "ids", "ms": 0.5, "share": pytest.approx(found.share), "cure": "codecs do not help"}
    nothing = replace(analysis, times=Times((), 0.0, 0.0, 0.0, {}, {}))
    assert read(nothing)["times"]["bottleneck"] is None


def test_slower_and_empty() -> None:
    assert read(slower())["times"]["predicted_slower"] is True
    assert read(analysis_of(96, 8, 200))["times"]["predicted_slower"] is False
    said = read(without_tables())
    assert said["totals"]["both"] == {"before": 0, "after": 0, "saved_share": None}
    assert said["tables"] == []


def test_2000_tables_on_4096_ranks_stay_below_50_mb() -> None:
    """With numbers as long as they get: 12 digits and fractions, on 512 hosts of 8."""
    whole, world, hosts = analysis_of(2, 1, 2000), 4096, 512
    draw = np.random.default_rng(0)

    def long(*shape: int) -> np.ndarray:
        return draw.uniform(1e11, 1e12, shape)

    def wide(exchange: ExchangeForecast) -> ExchangeForecast:
        sent = long(world, len(REACHES))
        return replace(exchange, sent=sent, received=sent[::-1], hosts=long(hosts, hosts))

    job = replace(whole.forecast.job, machines=machines(world, 8))
    arrays = {name: long(world) for name in ("lookups", "rows", "memory", "sync_bytes")}
    arrays |= {name: long(world, len(REACHES)) for name in ("ids_sent", "ids_received")}
    forecast, plain = (
        replace(side, job=job, exchanges=tuple(map(wide, side.exchanges)), **arrays) for side in (whole.forecast, whole.plain)
    )
    loads = tuple(Load(what, "B", long(world), tuple(range(1000)), (("t_0", 0.5),)) for what in "abcdefgh")
    text = report_json(replace(whole, forecast=forecast, plain=plain, loads=loads))
    assert 10e6 < len(text.encode()) < 50e6
    assert json.loads(text)["rank_matrix"] == {"left_out": "more than 512 ranks"}
