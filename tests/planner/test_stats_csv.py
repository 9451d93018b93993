"""TorchRec's planner statistics as CSV, and what is known of a real plan of 96 ranks."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from torchrec_qcomm.errors import PlannerError
from torchrec_qcomm.planner import Machines
from torchrec_qcomm.planner.sources.stats_csv import output_values, read_stats_csv
from torchrec_qcomm.policy import Policy, Table

DATA = Path(__file__).parent / "data"
TABLES, RANKS = DATA / "torchrec_example_tables.csv", DATA / "torchrec_example_ranks.csv"
MACHINES = Machines(96, 8)


@pytest.fixture(scope="module")
def job():
    return read_stats_csv(TABLES, MACHINES, ranks_path=RANKS)


def ids(table) -> float:
    bags = table.num_poolings or (1.0,) * len(table.features)
    return sum(number * pooling for number, pooling in zip(bags, table.pooling, strict=True))


def test_the_tables_of_the_real_plan(job):
    kinds = Counter((table.sharding_type, table.pooled) for table in job.tables)
    assert kinds == {("column_wise", True): 1933, ("row_wise", False): 2}
    assert job.batch_size == 2560
    assert (job.machines, job.policy) == (MACHINES, Policy())
    dims = np.array([table.table.dim for table in job.tables])
    assert np.mean(dims <= 12) == pytest.approx(0.571, abs=0.0005)
    assert all(table.shard_dims.sum() == table.table.dim for table in job.tables if table.pooled)
    assert sum(table.table.rows for table in job.tables) == pytest.approx(2.609e9, rel=1e-3)


def test_shards_of_the_real_plan(job):
    by_name = {table.table.name: table for table in job.tables}
    rows = by_name["table_1705"]
    assert (rows.module, rows.table) == ("model.sparse.sequence_ec", Table("table_1705", 80_000_000, 128))
    assert (len(rows.features), sum(rows.pooling)) == (4, pytest.approx(6066.0))
    assert rows.ranks.tolist() == list(range(96))
    assert rows.shard_rows.tolist() == [833_334] * 95 + [833_270]
    assert rows.row_offsets[1] == 833_334
    columns = by_name["table_1262"]
    assert columns.ranks.tolist() == [11, 27, 57, 60, 73, 78, 81, 91]
    assert columns.shard_dims.tolist() == [128] * 8
    assert columns.shard_rows.tolist() == [1_591_378] * 8
    assert by_name["table_1508"].num_poolings == (101.95,)  # variable batches: so many bags a sample
    assert ids(by_name["table_1508"]) == pytest.approx(102.086, abs=0.1)


def test_output_of_every_rank_is_the_planners(job):
    """Known of the plan: output bytes max/mean 1.386, at rank 28. Each figure has two decimals."""
    with RANKS.open() as file:
        theirs = np.array([float(row["output_mb"]) for row in csv.DictReader(file)])
    ours = 2 * output_values(job) / 2**20
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert np.argmax(ours) == 28
    assert ours.max() / ours.mean() == pytest.approx(1.386, abs=0.0005)


def test_ids_of_every_rank_are_the_planners(job):
    """``Input MB``: 8 bytes for each id that a rank takes in."""
    with RANKS.open() as file:
        theirs = np.array([float(row["input_mb"]) for row in csv.DictReader(file)])
    ours = np.zeros(96)
    for table in job.tables:
        ids_of_shard = ids(table) * job.batch_size * (1 if table.sharding_type == "row_wise" else 96)
        np.add.at(ours, table.ranks, 8 * ids_of_shard / 2**20)
    np.testing.assert_allclose(ours, theirs, rtol=1e-3)


def test_one_in_a_hundred_tables_has_half_of_the_lookups(job):
    lookups = sorted(map(ids, job.tables), reverse=True)
    assert sum(lookups[:19]) / sum(lookups) == pytest.approx(0.515, abs=0.001)


def test_memory_of_the_real_plan_is_even(job):
    memory = job.planned_memory
    assert memory.max() / memory.mean() == pytest.approx(1.01, abs=0.001)
    # Without the file of the ranks only that of the tables is known: 81 GiB less on every rank, and less even.
    alone = read_stats_csv(TABLES, MACHINES).planned_memory
    np.testing.assert_allclose((memory - alone) / 2**30, 80.86, atol=0.03)


def test_what_the_statistics_do_not_say_is_said(job):
    assert {table.value_bytes for table in job.tables} == {2}
    assert any(text.startswith("weights have 2 bytes") for text in job.assumptions)
    assert {table.payload for table in job.tables} == {torch.float32}
    assert any("float32 before they are encoded" in text for text in job.assumptions)
    bare = read_stats_csv(TABLES, payload=torch.float16)
    assert (bare.machines.world_size, bare.machines.devices_per_host) == (96, None)
    assert any("how many a host has is not known" in text for text in bare.assumptions)
    assert {(table.value_bytes, table.payload) for table in bare.tables} == {(4, torch.float16)}
    assert {table.value_bytes for table in read_stats_csv(TABLES, ranks_path=RANKS, value_bytes=4).tables} == {4}


HEADER = (
    "fqn,sharding,sum_pooling_factor,sum_num_poolings,num_indices,output,weighted,features,emb_dim,shard_dim,hash_size,ranks,"
    "batch_size"
)


def written(tmp_path, *lines: str, header: str = HEADER) -> Path:
    path = tmp_path / "plan.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_every_sharding_type(tmp_path):
    rest = "1.0,1.0,1.0,pooled,weighted,1"
    path = written(
        tmp_path,
        f"m.dp,DP,{rest},8,8,10,0-3,16",
        f"m.tw,TW,{rest},8,8,10,2,16",
        f"m.twcw,TWCW,{rest},8,4,10,'0,0',16".replace("'", '"'),
        f"m.twrw,TWRW,{rest},8,8,10,2-3,16",
        f"m.gs,GS,{rest},8,4,11,0-3,16",
        f"rw,RW,{rest},8,8,9,0-3,16",
    )
    tables = {table.table.name: table for table in read_stats_csv(path, Machines(4, 2)).tables}
    assert {
        n: (t.sharding_type, t.ranks.tolist(), t.shard_rows.tolist(), t.shard_dims.tolist()) for n, t in tables.items()
    } == {
        "dp": ("data_parallel", [], [], []),
        "tw": ("table_wise", [2], [10], [8]),
        "twcw": ("table_column_wise", [0, 0], [10, 10], [4, 4]),
        "twrw": ("table_row_wise", [2, 3], [5, 5], [8, 8]),
        "gs": ("grid_shard", [0, 1, 2, 3], [6, 5, 6, 5], [4] * 4),
        "rw": ("row_wise", [0, 1, 2, 3], [3, 3, 3, 0], [8] * 4),
    }
    assert tables["gs"].row_offsets.tolist() == [0, 6, 0, 6]
    assert all(table.weighted for table in tables.values())
    assert (tables["rw"].module, tables["tw"].module) == ("", "m")


def test_batch_sizes_of_features(tmp_path):
    """A feature of half the samples has half a bag for each of the plan's."""
    rest = "pooled,unweighted,{},8,8,10,0"
    path = written(
        tmp_path,
        "m.a,TW,6.0,3.0,6.0," + rest.format(3) + ',"16 * 2, 8"',
        "m.b,TW,5.0,1.0,5.0," + rest.format(1) + ",n/a",
        "m.c,TW,5.0,1.0,5.0," + rest.format(1) + ",16",
    )
    job = read_stats_csv(path, Machines(1, 1))
    assert job.batch_size == 16
    assert any("16 a rank, which 3 of 4 features have" in text for text in job.assumptions)
    a, b, _ = job.tables
    assert (a.num_poolings, a.pooling) == ((1.0, 1.0, 0.5), (2.0, 2.0, 2.0))
    assert (b.num_poolings, b.pooling) == ((), (5.0,))
    assert read_stats_csv(path, Machines(1, 1), batch_size=8).tables[1].num_poolings == ()
    assert read_stats_csv(path, Machines(1, 1), batch_size=8).tables[2].num_poolings == (2.0,)


def test_ids_are_exact_where_features_are_not_alike(tmp_path):
    """Ids of a bag 1 and 9, bags 9 and 1: 18 ids a sample, where alike features would have 50."""
    path = written(tmp_path, "m.a,TW,10.0,10.0,18.0,pooled,unweighted,2,8,8,10,0,16*2")
    (table,) = read_stats_csv(path, Machines(1, 1)).tables
    assert ids(table) == pytest.approx(18.0)
    assert sum(table.num_poolings) == 10.0


GOOD = "m.a,TW,1.0,1.0,1.0,pooled,unweighted,1,8,8,10,0,16"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (GOOD.replace("TW", "XX"), r"plan\.csv: line 2: sharding: unknown; got 'XX'; allowed: CW, DP"),
        (GOOD.replace("pooled", "summed", 1), r"line 2: output: unknown; got 'summed'; allowed: pooled, sequence"),
        (GOOD.replace("TW,1.0", "TW,many"), r"line 2: sum_pooling_factor: not a number; got 'many'"),
        (GOOD.replace("TW,1.0", "TW,-1"), r"line 2: sum_pooling_factor: not a number of anything; got '-1'"),
        (GOOD.replace("1,8,8", "0,8,8"), r"line 2: features: not a whole number; got '0'"),
        (GOOD.replace("10,0,16", "10,0-,16"), r"line 2: ranks: no ranks; got '0-'; allowed: as in 0-95"),
        (GOOD.replace("10,0,16", "10,3-1,16"), r"line 2: ranks: no ranks; got '3-1'"),
        (GOOD.replace("10,0,16", "10,7,16"), r"table 'a': a shard is on a rank that there is not; got \[7\]"),
        (GOOD.replace("8,8,10", "8,4,10"), r"line 2: ranks: they do not fit emb_dim and shard_dim; got '0'; allowed: 2 ranks"),
        (GOOD.replace("0,16", "0,16*2"), r"line 2: batch_size: not one for each feature; got '16\*2'; allowed: 1"),
        (GOOD.replace("0,16", "0,x"), r"line 2: batch_size: no batch sizes; got 'x'; allowed: as in 2560"),
        (GOOD.replace("0,16", "0,n/a"), r"batch_size: no row gives one; got 'n/a'.*Give the batch size"),
        (GOOD.replace("m.a", ""), r"line 2: fqn: no name"),
    ],
)
def test_wrong_values_are_named_with_their_place(tmp_path, line, message):
    with pytest.raises(PlannerError, match=message):
        read_stats_csv(written(tmp_path, line), Machines(1, 1))


def test_other_files_are_refused(tmp_path):
    with pytest.raises(PlannerError, match=r"plan\.csv: no planner statistics: columns are missing \(ranks\)"):
        read_stats_csv(written(tmp_path, GOOD, header=HEADER.replace("ranks,", "")), Machines(1, 1))
    with pytest.raises(PlannerError, match="no rows"):
        read_stats_csv(written(tmp_path), Machines(1, 1))
    with pytest.raises(PlannerError, match="cannot be read"):
        read_stats_csv(tmp_path / "none.csv", Machines(1, 1))
    with pytest.raises(PlannerError, match=r"ranks\.csv: rank: not the ranks of the plan"):
        read_stats_csv(written(tmp_path, GOOD), Machines(1, 1), ranks_path=RANKS)
