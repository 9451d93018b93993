"""The options of the benchmark. What it counts is held against links in tests/sharding/test_link_counters.py."""

from __future__ import annotations

import pytest
from bench_exchange import parse_options

from tests.examples.conftest import ROOT


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--exchange-only", "3"], "--exchange-only needs --arms with one arm of the plugin: none, fp16"),
        (["--exchange-only", "3", "--arms", "int8", "fp8"], "--exchange-only needs --arms with one arm"),
        (["--exchange-only", "3", "--arms", "torchrec fp32"], "--exchange-only needs --arms with one arm"),
        (["--exchange-only", "0", "--arms", "int8"], "not a count: '0'"),
        (["--rounds", "0"], "not a count: '0'"),
        (["--sharding", "row_wise", "--arms", "torchrec int8"], "torchrec int8: raises in TorchRec's own reduce-scatter"),
        (["--sharding", "table_row_wise", "--arms", "int8, h"], "int8, h: only --sharding row_wise can sum inside hosts first"),
        (["--json", str(ROOT)], "--json: a folder"),
        (["--json", str(ROOT / "nothing" / "times.json")], "--json: cannot write there"),
    ],
)
def test_bad_options_are_refused(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SystemExit):
        parse_options(arguments)
    assert message in capsys.readouterr().err


def test_it_says_how_to_start_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit):
        parse_options([])
    assert "start it with torchrun: torchrun --standalone" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    assert parse_options(["--exchange-only", "3", "--arms", "int8"]).exchange_only == 3
