"""Row-wise tables: a reduce-scatter made of a byte all-to-all, decoding, and a sum in FP32."""

from __future__ import annotations

import pytest

from tests.ranks import RankPool
from tests.sharding.reduced import quantized_step, train_beside_native
from tests.sharding.test_quantized import MIXED, UNIFORM
from torchrec_qcomm.policy import Policy

CASES = [
    pytest.param(world, sizes, weighted, id=f"{world}-{sizes}-{'weighted' if weighted else 'mean'}")
    for world, sizes in ((1, (7,)), (2, (7, 7)), (3, (7, 3, 5)), (4, (8, 8, 5, 1)), (3, (4, 0, 3)))
    for weighted in (False, True)
    if weighted or 0 not in sizes  # TorchRec's mean over row-wise tables cannot take an empty batch
]


@pytest.mark.parametrize(("world", "sizes", "weighted"), CASES)
def test_none_differs_from_torchrec_by_the_order_of_summation_only(
    ranks: RankPool, world: int, sizes: tuple[int, ...], weighted: bool
) -> None:
    for answer in ranks.run(world, train_beside_native, sizes, weighted, 6):
        assert answer["output"] <= 1, answer
        assert answer["weights"] <= 1, answer


@pytest.mark.parametrize(("world", "sizes", "weighted"), [case for case in CASES if case.values[0] > 1])
@pytest.mark.parametrize("policy", [MIXED, *UNIFORM], ids=lambda policy: "mixed" if policy.rules else str(policy.forward))
def test_quantized_within_the_sum_of_the_bounds(
    ranks: RankPool, world: int, sizes: tuple[int, ...], weighted: bool, policy: Policy
) -> None:
    for rank, answer in enumerate(ranks.run(world, quantized_step, sizes, policy, weighted)):
        assert answer["forward"] <= 1, answer
        assert all(over <= 1 for over in answer["backward"].values()), answer
        assert answer["forward equal"] == (sizes[rank] == 0)
        assert not any(answer["backward equal"].values())
