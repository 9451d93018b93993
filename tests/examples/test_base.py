"""Ids, splits and batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dlrm_lib.data.base import Ids, batches, compact, split
from dlrm_lib.data.synthetic import make_synthetic
from dlrm_lib.evaluation import quality
from dlrm_lib.report import table_text


@pytest.mark.parametrize(("batch_size", "world_size"), [(7, 1), (8, 3), (5, 4)])
def test_ranks_share_out_every_sample(batch_size: int, world_size: int) -> None:
    data = make_synthetic(samples=211, seed=1)
    parts = [
        list(batches(data, data.train, batch_size=batch_size, rank=r, world_size=world_size, shuffle_seed=3))
        for r in range(world_size)
    ]
    assert len({len(part) for part in parts}) == 1
    sizes = [[len(b.labels) for b in part] for part in parts]
    left_out = len(data.train) - sum(map(sum, sizes))
    assert 0 <= left_out < world_size
    assert all(size == batch_size for part in sizes for size in part[:-1])
    dense = torch.cat([b.dense_features for part in parts for b in part])
    assert len(torch.unique(dense, dim=0)) == len(dense)  # no sample twice


def test_a_batch_holds_the_samples_asked_for() -> None:
    data = make_synthetic(samples=60, seed=2)
    index = torch.tensor([31, 4, 4, 59])
    batch = data.batch(index)
    assert torch.equal(batch.dense_features, data.dense[index])
    assert torch.equal(batch.labels, data.labels[index])
    for name, ids in data.features.items():
        jagged = batch.sparse_features[name].to_dense()
        offsets = torch.arange(61) if ids.offsets is None else ids.offsets
        for row, sample in zip(jagged, index.tolist(), strict=True):
            assert torch.equal(row, ids.values[offsets[sample] : offsets[sample + 1]])


def test_shuffling_follows_the_seed() -> None:
    data = make_synthetic(samples=100, seed=2)

    def labels(seed: int | None) -> torch.Tensor:
        return torch.cat([b.labels for b in batches(data, data.train, batch_size=9, rank=0, world_size=1, shuffle_seed=seed)])

    assert torch.equal(labels(5), labels(5))
    assert not torch.equal(labels(5), labels(6))
    assert torch.equal(labels(None), data.labels[data.train])


def test_limit_stops_early() -> None:
    data = make_synthetic(samples=100, seed=2)
    assert len(list(batches(data, data.train, batch_size=9, rank=0, world_size=1, limit=2))) == 2


def test_bags_may_be_empty() -> None:
    ids = Ids(torch.tensor([5, 6, 7]), torch.tensor([0, 0, 3, 3]))
    values, lengths = ids.take(torch.tensor([0, 2, 1]))
    assert values.tolist() == [5, 6, 7]
    assert lengths.tolist() == [0, 0, 3]


def test_compact_numbers_distinct_combinations_in_order() -> None:
    ids, rows = compact([2, 1, 2, 1], [10, 30, 10, 20])
    assert rows == 3
    assert ids.tolist() == [2, 1, 2, 0]
    assert compact(np.array([], dtype=np.int64))[1] == 0


def test_split_is_a_partition_and_follows_the_seed() -> None:
    train, test = split(1001, 0.2, seed=4)
    assert len(test) == 200
    assert torch.equal(torch.cat([train, test]).sort().values, torch.arange(1001))
    assert torch.equal(split(1001, 0.2, seed=4)[1], test)
    assert not torch.equal(split(1001, 0.2, seed=5)[1], test)


def test_synthetic_follows_the_seed() -> None:
    one, same, other = (make_synthetic(samples=300, seed=s) for s in (7, 7, 8))
    for name, ids in one.features.items():
        assert torch.equal(ids.values, same.features[name].values)
    assert torch.equal(one.dense, same.dense)
    assert torch.equal(one.labels, same.labels)
    assert not torch.equal(one.dense, other.dense)
    assert not torch.equal(one.features["cat_4"].values, other.features["cat_4"].values)


def test_synthetic_ids_are_in_their_tables_and_skewed() -> None:
    data = make_synthetic(samples=5_000, seed=0)
    for table in data.tables:
        values = data.features[table.feature].values
        assert 0 <= int(values.min()) <= int(values.max()) < table.rows
    largest = data.features["cat_4"].values
    assert (largest < 100).float().mean() > 0.4  # 1 % of the rows
    assert 0.05 < data.base_rate < 0.95


def test_quality_of_a_constant_score_is_that_of_the_base_rate() -> None:
    labels = np.array([1, 0, 0, 0])
    found = quality(np.full(4, np.log(0.25 / 0.75)), labels)
    assert found.auc == 0.5
    assert found.normalized_entropy == pytest.approx(1.0)
    assert found.samples == 4


def test_quality_with_one_kind_of_label_is_not_a_number_that_means_something() -> None:
    found = quality(np.zeros(3), np.zeros(3))
    assert found.auc is None
    assert found.normalized_entropy is None


def test_columns_align() -> None:
    lines = table_text(["a", "b", "c"], [["long", "x", "10"], ["s", "yy", "9"]], left=2).splitlines()
    assert lines == ["a     b    c", "long  x   10", "s     yy   9"]
