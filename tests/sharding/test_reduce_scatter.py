"""Row-wise, table-row-wise and grid: reduce-scatters made of a byte all-to-all, decoding, and a sum in FP32."""

from __future__ import annotations

import pytest

from tests.ranks import RankPool
from tests.sharding.scenarios.reduce_scatter import quantized_step, train_beside_native
from tests.sharding.scenarios.tables import LOCAL
from tests.sharding.test_quantized import MIXED, UNIFORM
from torchrec_qcomm.policy import Policy, Rule

HIERARCHICAL = Policy("int4", "int8", rules=(Rule(link="intra_host", forward="bf16", backward="fp16"),))
"""Light inside a host, aggressive across: one rule."""

CASES = [
    pytest.param(kind, world, sizes, weighted, id=f"{kind}-{sizes}-{'weighted' if weighted else 'mean'}")
    for kind in ("row_wise", "table_row_wise", "grid_shard")
    for world, sizes in ((1, (7,)), (2, (7, 7)), (3, (7, 3, 5)), (4, (8, 8, 5, 1)), (4, (4, 0, 3, 2)))
    for weighted in (False, True)
    # TorchRec's mean over row-wise tables cannot take an empty batch, and its mean over grid tables is refused.
    if (weighted or (0 not in sizes and kind != "grid_shard")) and (kind == "row_wise" or world % LOCAL == 0)
]


def env(kind: str) -> dict[str, str] | None:
    """Hosts of two ranks for shardings that look at hosts."""
    return None if kind == "row_wise" else {"LOCAL_WORLD_SIZE": str(LOCAL)}


@pytest.mark.parametrize(("kind", "world", "sizes", "weighted"), CASES)
def test_none_differs_from_torchrec_by_the_order_of_summation_only(
    ranks: RankPool, kind: str, world: int, sizes: tuple[int, ...], weighted: bool
) -> None:
    for answer in ranks.run(world, train_beside_native, kind, sizes, weighted, 4, env=env(kind)):
        assert answer["output"] <= 1, answer
        assert answer["weights"] <= 1, answer


@pytest.mark.parametrize(("kind", "world", "sizes", "weighted"), [case for case in CASES if case.values[1] > 2])
@pytest.mark.parametrize(
    "policy", [MIXED, HIERARCHICAL, *UNIFORM], ids=["mixed", "hierarchical", *(str(policy.forward) for policy in UNIFORM)]
)
def test_quantized_within_the_sum_of_the_bounds(
    ranks: RankPool, kind: str, world: int, sizes: tuple[int, ...], weighted: bool, policy: Policy
) -> None:
    hosts = env(kind) or {"LOCAL_WORLD_SIZE": "1"}
    for rank, answer in enumerate(ranks.run(world, quantized_step, kind, sizes, policy, weighted, env=hosts)):
        assert answer["forward"] <= 1, answer
        assert all(over <= 1 for over in answer["backward"].values()), answer
        assert answer["forward equal"] == (sizes[rank] == 0)
        assert not any(answer["backward equal"].values())
