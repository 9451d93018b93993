"""A data set of clicks in memory, and how it is cut into batches.

``ClickData`` holds ``N`` samples: dense inputs ``[N, n_dense]``, one ``Ids`` per feature, labels ``[N]``, and which samples
are for training and which are held out. One feature has one table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torchrec.datasets.utils import Batch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


@dataclass(frozen=True, slots=True)
class TableSpec:
    """An embedding table and the feature that looks into it.

    Attributes:
        name: of the table.
        feature: of the ids.
        rows: of the table; every id is in ``[0, rows)``.
        pooling: ``"sum"`` or ``"mean"``.
    """

    name: str
    feature: str
    rows: int
    pooling: str = "sum"


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of one feature for ``N`` samples.

    Attributes:
        values: int64; ``[N]`` for a single-valued feature, otherwise all bags one after the other.
        offsets: int64 ``[N + 1]``, bag ``i`` is ``values[offsets[i]:offsets[i + 1]]``; None for a single-valued feature.
    """

    values: torch.Tensor
    offsets: torch.Tensor | None = None

    def take(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The ids of the samples ``index`` ``[B]``, and their number per sample ``[B]``.

        >>> bags = Ids(torch.tensor([5, 6, 7]), torch.tensor([0, 2, 2, 3]))
        >>> bags.take(torch.tensor([2, 0]))
        (tensor([7, 5, 6]), tensor([1, 2]))
        """
        if self.offsets is None:
            return self.values[index], torch.ones_like(index)
        starts, lengths = self.offsets[index], self.offsets[index + 1] - self.offsets[index]
        before = torch.cumsum(lengths, 0) - lengths
        return self.values[torch.repeat_interleave(starts - before, lengths) + torch.arange(int(lengths.sum()))], lengths


@dataclass(frozen=True)
class ClickData:
    """A data set in memory.

    Attributes:
        name: of the data set, for the report.
        dense: float32 ``[N, len(dense_names)]``.
        dense_names: what each dense column is.
        features: the ids of each feature, in the order of ``tables``.
        labels: float32 ``[N]``, 0 or 1.
        tables: one per feature.
        train: int64, the samples to train on.
        test: int64, the held-out samples.
    """

    name: str
    dense: torch.Tensor
    dense_names: tuple[str, ...]
    features: dict[str, Ids]
    labels: torch.Tensor
    tables: tuple[TableSpec, ...]
    train: torch.Tensor
    test: torch.Tensor

    @cached_property
    def base_rate(self) -> float:
        """The share of positive labels among all samples."""
        return float(self.labels.double().mean())

    def batch(self, index: torch.Tensor) -> Batch:
        """The samples ``index`` as the batch that TorchRec's ``DLRMTrain`` takes."""
        taken = [ids.take(index) for ids in self.features.values()]
        return Batch(
            dense_features=self.dense[index],
            sparse_features=KeyedJaggedTensor(
                keys=list(self.features),
                values=torch.cat([values for values, _ in taken]),
                lengths=torch.cat([lengths for _, lengths in taken]).to(torch.int32),
                stride=len(index),
            ),
            labels=self.labels[index],
        )


def split(samples: int, test_share: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A random split into training and held-out samples.

    Returns:
        Two int64 tensors of sample numbers in ascending order, the same for the same arguments.
    """
    order = np.random.default_rng(seed).permutation(samples)
    held_out = round(samples * test_share)
    return torch.from_numpy(np.sort(order[held_out:])), torch.from_numpy(np.sort(order[:held_out]))


def batches(
    data: ClickData,
    index: torch.Tensor,
    *,
    batch_size: int,
    rank: int,
    world_size: int,
    shuffle_seed: int | None = None,
    limit: int | None = None,
) -> Iterator[Batch]:
    """This rank's part of each global batch.

    Every rank gets the same number of batches. The last global batch may be smaller: its samples are dealt out as evenly
    as possible, and it is left out if there is not one sample for each rank.

    Args:
        data: the data set.
        index: the samples to go through, for example ``data.train``.
        batch_size: per rank.
        rank: this rank.
        world_size: the number of ranks.
        shuffle_seed: the order is a random permutation with this seed; None keeps the order of ``index``.
        limit: stop after so many batches.
    """
    if shuffle_seed is not None:
        index = index[torch.from_numpy(np.random.default_rng(shuffle_seed).permutation(len(index)))]
    for number, start in enumerate(range(0, len(index), batch_size * world_size)):
        whole = index[start : start + batch_size * world_size]
        if len(whole) < world_size or (limit is not None and number >= limit):
            return
        yield data.batch(whole.tensor_split(world_size)[rank])


def compact(*keys: Sequence[int] | np.ndarray) -> tuple[np.ndarray, int]:
    """Ids for the distinct combinations of some integer columns, in sorted order of the combinations.

    Returns:
        The ids ``[N]`` (int64, ``0 .. rows - 1``) and the number of rows.

    >>> compact([7, 7, 3], [0, 1, 0])
    (array([1, 2, 0]), 3)
    """
    combined = np.zeros(len(keys[0]), dtype=np.int64)
    for key in keys:
        _, codes = np.unique(np.asarray(key), return_inverse=True)
        # compact after each column: the product of many columns' sizes would overflow
        _, combined = np.unique(combined * (int(codes.max(initial=0)) + 1) + codes, return_inverse=True)
    return combined, int(combined.max(initial=-1)) + 1
