"""Made-up clicks: ids with a Zipf distribution, and a logistic signal planted in them.

The shape is Criteo's: 13 dense inputs and 26 features with tables ``t_cat_0`` to ``t_cat_25``, so a policy written for one fits
the other. The last feature is a bag of up to 4 ids, so that there is something to pool.
"""

from __future__ import annotations

import numpy as np
import torch

from dlrm_lib.data.base import ClickData, Ids, TableSpec, split

DENSE, TABLES, LONGEST_BAG = 13, 26, 4
ROWS = (4, 30, 200, 1_500, 10_000)  # tables take these in turn, from small enough for a cache to one with a long tail
TEST_SHARE = 0.2


def make_synthetic(samples: int, seed: int, zipf: float = 1.05, base_logit: float = -1.5) -> ClickData:
    """Draw clicks.

    Args:
        samples: how many.
        seed: the same seed gives the same samples, labels and split.
        zipf: the k-th most frequent id of a table has a probability in proportion to ``k ** -zipf``.
        base_logit: shifts the share of clicks.
    """
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((samples, DENSE))
    logit = base_logit + dense @ rng.normal(0, 0.15, DENSE)
    features, tables = {}, []
    for number in range(TABLES):
        rows = ROWS[number % len(ROWS)]
        lengths = rng.integers(0, LONGEST_BAG + 1, samples) if number == TABLES - 1 else np.ones(samples, dtype=np.int64)
        ids = _zipf(rng, rows, int(lengths.sum()), zipf)
        effect = rng.normal(0, 0.3, rows)  # what an embedding table has to learn
        sample = np.repeat(np.arange(samples), lengths)
        logit += np.bincount(sample, weights=effect[ids], minlength=samples)
        bag = number == TABLES - 1
        offsets = torch.from_numpy(np.concatenate([[0], lengths.cumsum()])) if bag else None
        features[f"cat_{number}"] = Ids(torch.from_numpy(ids), offsets)
        tables.append(TableSpec(f"t_cat_{number}", f"cat_{number}", rows))
    labels = rng.random(samples) < 1 / (1 + np.exp(-logit))
    train, test = split(samples, TEST_SHARE, seed)
    return ClickData(
        name="synthetic",
        dense=torch.from_numpy(dense.astype(np.float32)),
        dense_names=tuple(f"int_{number}" for number in range(DENSE)),
        features=features,
        labels=torch.from_numpy(labels.astype(np.float32)),
        tables=tuple(tables),
        train=train,
        test=test,
    )


def _zipf(rng: np.random.Generator, rows: int, count: int, exponent: float) -> np.ndarray:
    """``count`` ids in ``[0, rows)``; small ids are frequent."""
    weights = np.arange(1, rows + 1, dtype=np.float64) ** -exponent
    return np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(count)).clip(max=rows - 1).astype(np.int64)
