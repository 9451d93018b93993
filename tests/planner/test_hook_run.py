"""What the hook is told by TorchRec's planner is what the counters show when that plan is trained."""

from __future__ import annotations

import numpy as np
import pytest

from tests.planner.hook_run import Run, planned_and_run
from tests.ranks import RankPool
from tests.sharding.scenarios.tables import TableSpec
from torchrec_qcomm.planner.forecast.counts import count_batches
from torchrec_qcomm.planner.forecast.predict import predict
from torchrec_qcomm.policy import Policy, Rule, Where

KINDS = ("row_wise", "table_wise", "column_wise", "table_column_wise", "table_row_wise", "grid_shard", "data_parallel")
BAGS = (
    TableSpec("t0", 40, 64, ("a", "b")),
    TableSpec("t1", 33, 20, ("c",)),
    TableSpec("t2", 50, 48, ("d",)),
    TableSpec("t3", 21, 32, ("e", "f", "g")),
    TableSpec("t4", 33, 28, ("h",)),
    TableSpec("t5", 37, 36, ("i",)),
    TableSpec("t6", 11, 16, ("j",)),
)
NAMED_ALIKE = tuple((TableSpec(f"t{i}", rows, 24, (f"q{i}",)), KINDS[i]) for i, rows in enumerate((60, 30, 50)))
"""Sequences whose tables have names of tables of bags, and other sizes."""

POLICY = Policy(
    "int8",
    "fp8_e5m2",
    rules=(
        Rule(tables="t[01]", link="self", forward="none", backward="none"),
        Rule(tables="t2", link="intra_host", forward="int4"),
        Rule(tables="t3", forward={"codec": "int8", "range": {"ema": 0.9}}, allow_unmatched=True),
        Rule(where=Where(min_rows=60), forward="bf16", allow_unmatched=True),
    ),
)
HALF = Policy("int8", "fp16", rules=(Rule(tables="t0", forward="none", backward="none"), Rule(tables="t1", forward="bf16")))
THREE = tuple(zip(BAGS, (*KINDS[:5], "table_wise", "data_parallel"), strict=True))


@pytest.mark.parametrize(
    "run",
    [
        Run(POLICY, tuple(zip(BAGS, KINDS, strict=True)), NAMED_ALIKE),
        Run(POLICY, tuple(zip(BAGS, KINDS, strict=True)), weighted=True),
        Run(HALF, tuple(zip(BAGS, KINDS, strict=True)), half=True),
        Run(POLICY, THREE, world=3, local=3),
    ],
    ids=["sequences named alike", "weighted", "FP16 lookups", "three ranks of one host"],
)
def test_the_plan_of_the_hook_is_what_runs(ranks: RankPool, run: Run) -> None:
    answers = ranks.run(run.world, planned_and_run, run, env={"LOCAL_WORLD_SIZE": str(run.local)})
    job, text, traffic, _ = answers[0]
    forecast = predict(job, count_batches([run.batches(rank) for rank in range(run.world)], job))
    assert forecast.traffic() == traffic
    assert traffic.wire_bytes() > 0
    ids = np.array([spied for *_, spied in answers])
    assert forecast.ids_sent.sum(axis=1).tolist() == ids.sum(axis=1).tolist()
    assert forecast.ids_received.sum(axis=1).tolist() == ids.sum(axis=0).tolist()
    assert all(table.name in text for table, _ in (*run.bags, *run.sequences))
