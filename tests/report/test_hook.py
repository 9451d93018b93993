"""The hook in TorchRec's own planner: it reports, and whatever happens to it does not touch the planning."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.stats import EmbeddingStats
from torchrec.distributed.planner.types import PlannerError as NativePlannerError
from torchrec.distributed.types import ShardingPlan

import torchrec_qcomm as qc
from tests.ranks import RankPool
from tests.report.planning import BATCH, DIMS, model, plan_together, planner
from torchrec_qcomm.planner.sources.plan_file import read_plan
from torchrec_qcomm.policy import Direction

LOGGER = "torchrec_qcomm.report.hook"


@pytest.fixture
def stats() -> qc.QCommStats:
    return qc.QCommStats()


def said_by_the_hook(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


def owners(plan: ShardingPlan) -> dict[str, int]:
    return {name: sharding.ranks[0] for name, sharding in plan.plan["ebc"].items()}


def test_a_plan_is_reported(stats: qc.QCommStats, caplog: pytest.LogCaptureFixture) -> None:
    """INT8 rows of dim D are D + 8 bytes for each of the samples of all ranks; gradients as they are."""
    assert (stats.analysis, stats.text) == (None, None)
    with caplog.at_level(logging.INFO, logger=LOGGER):
        plan = planner([stats]).plan(model(), qc.get_sharders(qc.Policy("int8")))
    assert stats.analysis is not None
    forecast = stats.analysis.forecast
    assert (forecast.job.machines.world_size, forecast.job.machines.devices_per_host, forecast.job.batch_size) == (4, 2, BATCH)
    for name, dim in DIMS.items():
        table = forecast.table(name)
        assert table.wire[Direction.FORWARD].sum() == 4 * BATCH * (dim + 8)
        assert table.wire[Direction.BACKWARD].sum() == 4 * BATCH * 4 * dim
    sent = np.zeros(4)
    for name, rank in owners(plan).items():
        sent[rank] += 4 * BATCH * (DIMS[name] + 8)
    bags = [each for each in forecast.exchanges if each.module == "ebc" and each.direction == Direction.FORWARD]
    assert np.array_equal(sum(each.sent for each in bags).sum(1), sent)
    assert said_by_the_hook(caplog) == [stats.text]
    assert "4 ranks: 2 hosts of 2" in caplog.text


def test_a_given_policy_comes_before_that_of_the_sharders() -> None:
    stats = qc.QCommStats(qc.Policy("int4", "int4"))
    planner([stats]).plan(model(), qc.get_sharders(qc.Policy("int8")))
    assert stats.analysis is not None
    assert stats.analysis.forecast.job.policy == qc.Policy("int4", "int4")


def test_a_given_topology_comes_before_that_of_the_planner() -> None:
    stats = qc.QCommStats(topology=qc.get_topology(world_size=4, local_world_size=1, device="cpu"))
    planner([stats]).plan(model(), qc.get_sharders())
    assert stats.analysis is not None
    assert stats.analysis.forecast.job.machines.devices_per_host == 1


def test_the_plan_is_exported(tmp_path: Path) -> None:
    stats = qc.QCommStats(export=tmp_path / "plan.json")
    plan = planner([stats]).plan(model(), qc.get_sharders())
    job = read_plan(tmp_path / "plan.json")
    assert {table.table.name: int(table.ranks[0]) for table in job.tables if table.module == "ebc"} == owners(plan)


def test_the_call_without_a_plan(stats: qc.QCommStats, caplog: pytest.LogCaptureFixture) -> None:
    """TorchRec passes an empty plan, and its last proposal, every rank -1; a report of before is gone."""
    planner([stats]).plan(model(), qc.get_sharders())
    assert stats.analysis is not None
    caplog.clear()
    with caplog.at_level(logging.INFO, logger=LOGGER), pytest.raises(NativePlannerError):
        planner([stats], ddr_cap=1000).plan(model(), qc.get_sharders())
    assert said_by_the_hook(caplog) == ["torchrec_qcomm: no plan was found, so there is nothing to report"]
    assert (stats.analysis, stats.text) == (None, None)


class Broken(qc.Policy):
    """A policy that raises as soon as it is asked."""

    def resolve(self, tables: object) -> qc.policy.ResolvedPolicy:
        raise RuntimeError("this policy\nis broken")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"policy": Broken("int8")}, "RuntimeError: this policy is broken"),
        ({"speeds": {"none": (0.0, 1.0)}}, "PlannerError: codec speeds: none: not two speeds"),
        ({"export": "no/such/folder/plan.json"}, "PlannerError: no/such/folder/plan.json: cannot be written"),
        ({"topology": "not one"}, "AttributeError"),
    ],
)
def test_a_failing_hook_does_not_disturb_planning(
    arguments: dict[str, object], said: str, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    alone = planner([]).plan(model(), qc.get_sharders())
    failing, after = qc.QCommStats(**arguments), qc.QCommStats()
    with caplog.at_level(logging.INFO, logger=LOGGER):
        plan = planner([failing, after]).plan(model(), qc.get_sharders())
    assert owners(plan) == owners(alone)
    assert (failing.analysis, failing.text) == (None, None)
    assert after.analysis is not None
    warning, report = said_by_the_hook(caplog)
    assert report == after.text
    assert warning.startswith("torchrec_qcomm: no report of the plan, which is not touched by that: ")
    assert said in warning
    assert "\n" not in warning


def test_under_collective_plan_rank_0_alone_has_a_report(ranks: RankPool) -> None:
    answers = ranks.run(2, plan_together)
    assert [answer[:2] for answer in answers] == [(True, True), (False, False)]
    assert answers[0][2] == answers[1][2]


def test_get_planner_reports_beside_torchrecs_own_statistics(caplog: pytest.LogCaptureFixture) -> None:
    config = qc.QCommConfig.from_dict(
        {
            "batch_size": BATCH,
            "precision": {"default": {"forward": "int8"}},
            "topology": {"hosts": 2, "devices_per_host": 2, "device": "cpu"},
            "sharding": [{"tables": "t_*", "sharding_types": ["table_wise"]}],
        }
    )
    made: EmbeddingShardingPlanner = qc.get_planner(config, model())
    native, ours = made._stats
    assert isinstance(native, EmbeddingStats)
    assert isinstance(ours, qc.QCommStats)
    with caplog.at_level(logging.INFO, logger=LOGGER):
        made.plan(model(), qc.get_sharders(config))
    assert ours.analysis is not None
    assert ours.analysis.forecast.job.policy.forward.name == "int8"
    assert "Forecast of a step" in caplog.text
    mine = qc.QCommStats()
    assert qc.get_planner(config, model(), stats=[mine])._stats == [mine]


def test_json_and_html_are_made_of_what_the_hook_has(stats: qc.QCommStats) -> None:
    from torchrec_qcomm.report.html.page import report_html
    from torchrec_qcomm.report.json import report_json

    planner([stats]).plan(model(), qc.get_sharders(qc.Policy("int8")))
    assert stats.analysis is not None
    said = json.loads(report_json(stats.analysis))
    assert {table["name"] for table in said["tables"]} == {*DIMS, "t_ids"}
    assert said["ranks"]["sent"]["after"]["forward"] == stats.analysis.forecast.sent(("forward",)).tolist()
    assert "t_ids" in report_html(stats.analysis)
