"""The benchmark of forecasts: what it makes up, and what it prints."""

from __future__ import annotations

import pytest
from bench_lib.plans import MIX, made_up_job
from bench_planner import STEPS, main, measure, parse_options


def test_made_up_plans_have_every_kind_and_a_row_wise_shard_on_every_rank() -> None:
    job = made_up_job(32, 200)
    kinds = {f"{table.sharding_type}{'' if table.pooled else ' sequences'}" for table in job.tables}
    assert kinds == set(MIX)
    assert all(len(table.ranks) == 32 for table in job.tables if table.sharding_type == "row_wise")
    assert all((table.shard_rows.sum() % table.table.rows) == 0 for table in job.tables)
    again = made_up_job(32, 200)
    assert [table.ranks.tolist() for table in again.tables] == [table.ranks.tolist() for table in job.tables]


def test_all_steps_are_timed() -> None:
    found = measure(16, 20)
    assert (found["ranks"], found["tables"]) == (16, 20)
    assert list(found["seconds"]) == [name for name, _ in STEPS]
    assert list(found["seconds"]) == ["forecast", "analysis", "text", "JSON"]
    assert found["peak_mb"] >= found["before_mb"] > 0
    assert found["json_mb"] > 0


def test_a_line_for_each_size(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["bench_planner.py", "--ranks", "8", "16", "--tables", "20"])
    main()
    head, *lines = capsys.readouterr().out.splitlines()
    assert [name for name in ("forecast s", "analysis s", "text s", "JSON s", "JSON MB") if name not in head] == []
    assert [line.split()[:2] for line in lines] == [["8", "20"], ["16", "20"]]


def test_ranks_fill_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--ranks", "12"])
    assert "--ranks 12: hosts have 8 ranks" in capsys.readouterr().err
