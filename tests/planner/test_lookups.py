"""What batches look up, beside counts made otherwise: one by one, and by TorchRec's own kernel that deals ids out to ranks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torchrec.distributed.embedding_sharding import bucketize_kjt_before_all2all
from torchrec.distributed.types import EnumerableShardingSpec, ParameterSharding, ShardingPlan, ShardMetadata
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.planner.forecasts import job, table
from torchrec_qcomm.errors import PlannerError
from torchrec_qcomm.planner.findings.lookups import LookupProfile, profile_lookups
from torchrec_qcomm.planner.job import Replicas


def batch(lengths: dict[str, list[int]], rows: int = 10, seed: int = 0, weights: bool = False) -> KeyedJaggedTensor:
    """Random ids below ``rows``, the small ones more often."""
    many = torch.tensor([length for each in lengths.values() for length in each], dtype=torch.int64)
    generator = torch.Generator().manual_seed(seed)
    ids = (torch.rand(int(many.sum()), generator=generator) ** 3 * rows).long()
    return KeyedJaggedTensor(list(lengths), ids, torch.ones(len(ids)) if weights else None, lengths=many)


def only(profile: LookupProfile):
    (entry,) = profile.tables
    return entry


def by_kernel(batches: list[KeyedJaggedTensor], rows: int, ranks: int) -> list[int]:
    """Ids that TorchRec sends to each rank of a row-wise table."""
    block = torch.tensor([-(-rows // ranks)] * len(batches[0].keys()))
    dealt = [bucketize_kjt_before_all2all(each, num_buckets=ranks, block_sizes=block)[0] for each in batches]
    return [sum(int(each.lengths().view(ranks, -1)[rank].sum()) for each in dealt) for rank in range(ranks)]


@pytest.mark.parametrize("rows", [10, 4, 3, 2])
def test_a_row_wise_shard_gets_what_torchrec_sends_it(rows):
    # 10 rows on 4 ranks are blocks of 3, 3, 3, 1; 2 rows leave two ranks without any.
    batches = [batch({"t_0": [4, 0, 9], "t_1": [1, 2, 3]}, rows, seed) for seed in range(3)]
    found = only(profile_lookups(batches, job([table("t", rows=rows, kind="row_wise", ranks=range(4), pooling=[1, 1])])))
    assert found.per_shard.tolist() == by_kernel(batches, rows, 4)
    assert found.lookups == sum(len(each.values()) for each in batches)


def test_the_hottest_ids_and_their_owner():
    batches = [batch({"t_0": [200, 300]}, rows=40, seed=seed) for seed in range(4)]
    found = only(profile_lookups(batches, job([table("t", rows=40, kind="row_wise", ranks=[3, 1, 0, 2])])))
    counts = Counter(torch.cat([each.values() for each in batches]).tolist())
    assert [count for _, count in found.hottest] == [count for _, count in counts.most_common(10)]
    assert all(counts[row] == count for row, count in found.hottest)
    assert found.hot_share == pytest.approx(sum(count for _, count in counts.most_common(10)) / 2000)
    assert found.distinct == len(counts)
    assert found.missed == 0
    # Ids are below 10 most often, and these rows are the first shard's, which is on rank 3.
    first = sum(count for row, count in counts.items() if row < 10)
    assert found.owner == (3, pytest.approx(first / (2000 / 4)))


def test_column_shards_get_all_ids_and_host_shards_those_of_their_rows():
    tables = [
        table("c", rows=10, kind="column_wise", ranks=[0, 2]),
        table("h", rows=10, kind="table_row_wise", ranks=[2, 3]),
        table("w", rows=10, ranks=[1]),
    ]
    ids = KeyedJaggedTensor(["c_0", "h_0", "w_0"], torch.tensor([1, 9, 9, 1, 4, 5, 7]), lengths=torch.tensor([3, 3, 1]))
    found = profile_lookups([ids], job(tables))
    assert [entry.per_shard.tolist() for entry in found.tables] == [[3, 3], [2, 1], [1]]
    assert [entry.owner for entry in found.tables] == [None, (2, pytest.approx(2 / 1.5)), None]


def test_grid_shards_are_counted_host_by_host():
    # Two column shards, each with its rows on the 2 ranks of a host: TorchRec's order, host by host.
    grid = table("g", rows=10, kind="grid_shard", ranks=[0, 1, 2, 3])
    arrays = {"shard_rows": [5, 5, 5, 5], "shard_dims": [32] * 4, "row_offsets": [0, 5, 0, 5]}
    for name, values in arrays.items():
        object.__setattr__(grid, name, np.array(values))
    ids = KeyedJaggedTensor(["g_0"], torch.tensor([0, 1, 2, 9]), lengths=torch.tensor([4]))
    assert only(profile_lookups([ids], job([grid]))).per_shard.tolist() == [3, 1, 3, 1]


def test_weights_and_variable_batches_change_nothing():
    plan = job([table("t", rows=10, kind="row_wise", ranks=range(4)), table("u", rows=10)])
    lengths = {"t_0": [2, 0, 5], "u_0": [1, 1, 1]}
    plain, weighted = batch(lengths), batch(lengths, weights=True)
    # The same ids with two bags of t and four of u.
    variable = KeyedJaggedTensor(
        ["t_0", "u_0"], plain.values(), lengths=torch.tensor([3, 4, 1, 0, 1, 1]), stride_per_key_per_rank=[[2], [4]]
    )
    expected = [(entry.lookups, entry.per_shard.tolist(), entry.hottest) for entry in profile_lookups([plain], plan).tables]
    for other in (weighted, variable):
        found = profile_lookups([other], plan)
        assert [(entry.lookups, entry.per_shard.tolist(), entry.hottest) for entry in found.tables] == expected


def test_empty_batches_and_none():
    plan = job([table("t", rows=10, kind="row_wise", ranks=range(4))])
    empty = KeyedJaggedTensor(["t_0"], torch.zeros(0, dtype=torch.int64), lengths=torch.zeros(0, dtype=torch.int64))
    for batches in ([], [empty], [empty, batch({"t_0": [0, 0]})]):
        found = profile_lookups(batches, plan)
        entry = only(found)
        assert (entry.lookups, entry.hottest, entry.hot_share, entry.owner) == (0, (), 0.0, None)
        assert found.per_rank(plan).tolist() == [0, 0, 0, 0]
    assert profile_lookups([empty, batch({"t_0": [3]})], plan).samples == 1


def test_memory_is_bounded_and_what_is_lost_is_told():
    # Few ids are kept; the truth is within what is told, and what shards get is exact.
    batches = [batch({"t_0": [500, 500]}, rows=4000, seed=seed) for seed in range(20)]
    plan = job([table("t", rows=4000, kind="row_wise", ranks=range(4))])
    exact, bounded = only(profile_lookups(batches, plan)), only(profile_lookups(batches, plan, kept_ids=200))
    assert bounded.distinct == 200 < exact.distinct
    assert bounded.per_shard.tolist() == exact.per_shard.tolist()
    assert 0 < bounded.missed < exact.hottest[0][1]
    counts = Counter(torch.cat([each.values() for each in batches]).tolist())
    assert all(counts[row] - bounded.missed <= count <= counts[row] for row, count in bounded.hottest)


def test_loads_of_ranks_are_scaled_to_a_step():
    # 2 batches of 5 samples and 40 ids; a step of the job has 4 ranks of 8 samples: 3.2 times as many.
    tables = [
        table("t", rows=10, kind="row_wise", ranks=range(4)),
        table("u", rows=10, ranks=[2]),
        table("d", rows=10, kind="data_parallel", ranks=()),
    ]
    plan = job(tables)
    batches = [batch({"t_0": [2, 0, 5, 0, 3], "u_0": [1, 0, 0, 1, 0], "d_0": [5, 5, 5, 5, 5]}, seed=seed) for seed in (1, 2)]
    found = profile_lookups(batches, plan)
    shards = found.tables[0].per_shard
    # u: 2 ids a batch of 5 samples, all at rank 2; d: every rank its own 8 samples of 5 ids.
    expected = shards / 10 * 32 + np.array([0, 0, 0.4 * 32, 0]) + 8 * 5
    assert found.per_rank(plan).tolist() == pytest.approx(expected.tolist())
    assert sum(many for _, many in found.on(plan, 2)) == pytest.approx(expected[2])
    # With 2D parallelism a group of 2 ranks has its own samples alone: 16, and shards by place in the group.
    pairs = job([table("t", rows=10, kind="row_wise", ranks=range(2))], replicas=Replicas(group_size=2))
    two = profile_lookups(batches, pairs)
    first, second = (float(many) / 10 * 16 for many in two.tables[0].per_shard)
    assert two.per_rank(pairs).tolist() == pytest.approx([first, first, second, second])  # groups [0, 2] and [1, 3]


def test_a_profile_of_a_plan_of_torchrec():
    def shard(offset: int, size: int, rank: int) -> ShardMetadata:
        return ShardMetadata(shard_offsets=[offset, 0], shard_sizes=[size, 8], placement=f"rank:{rank}/cpu")

    rows = EnumerableShardingSpec([shard(0, 3, 0), shard(3, 3, 1), shard(6, 3, 2), shard(9, 1, 3)])
    plan = ShardingPlan(
        {
            "ebc": {
                "t": ParameterSharding("row_wise", "fused", [0, 1, 2, 3], rows),
                "d": ParameterSharding("data_parallel", "dense", [0, 1, 2, 3], None),
            }
        }
    )
    batches = [batch({"t_0": [4, 0, 9], "d_0": [1, 1, 1]})]
    found = profile_lookups(batches, plan, features={"t": ["t_0"], "d": ["d_0"]})
    theirs = job([table("t", rows=10, kind="row_wise", ranks=range(4)), table("d", rows=10, kind="data_parallel", ranks=())])
    assert found.per_rank(theirs).tolist() == profile_lookups(batches, theirs).per_rank(theirs).tolist()
    with pytest.raises(PlannerError, match=r"table 't': a ShardingPlan names no features"):
        profile_lookups(batches, plan)


def test_what_cannot_be_counted_is_refused():
    plan = job([table("t", rows=10)])
    with pytest.raises(PlannerError, match=r"table 't': not a row; got 12; allowed: 0 to 9"):
        profile_lookups([KeyedJaggedTensor(["t_0"], torch.tensor([3, 12]), lengths=torch.tensor([2]))], plan)
    with pytest.raises(PlannerError, match=r"not a row; got -1"):
        profile_lookups([KeyedJaggedTensor(["t_0"], torch.tensor([3, -1]), lengths=torch.tensor([2]))], plan)
    with pytest.raises(PlannerError, match=r"table 't': a batch lacks its feature; got 't_0'"):
        profile_lookups([batch({"other": [1]})], plan)
    profile = profile_lookups([batch({"t_0": [1]})], plan)
    with pytest.raises(PlannerError, match=r"table 't' of module 'ebc': not profiled on these ranks; got \[0\]"):
        profile.per_rank(job([table("t", rows=10, ranks=[1])]))
    with pytest.raises(PlannerError, match=r"table 'v'"):
        profile.per_rank(job([table("v", rows=10)]))
