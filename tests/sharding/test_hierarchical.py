"""Row-wise tables summed inside each host before they cross hosts."""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torchrec.distributed import comm
from torchrec.distributed.types import ShardingEnv2D

import torchrec_qcomm as qc
from tests.ranks import RankPool
from tests.sharding.scenarios.pooled_collections import CPU, shard, step, traffic
from tests.sharding.scenarios.reduce_scatter import HIERARCHICAL, quantized_step, train_beside_native
from tests.sharding.scenarios.tables import LOCAL, SGD, TABLES, batch, collection, load_full, local_weights, placed
from tests.sharding.scenarios.variable_batch import MEANS, SIZES, beside_native_reduced, ragged
from tests.sharding.scenarios.variable_batch import quantized_step as variable_quantized_step
from tests.sharding.test_quantized import MIXED
from tests.sharding.test_traffic import HOPS, check_two_hops_by_hand
from tests.sharding.test_variable_batch import rows_sent
from torchrec_qcomm.errors import QCommError, ShardingError
from torchrec_qcomm.policy import Policy
from torchrec_qcomm.sharding import QCommEmbeddingBagCollectionSharder
from torchrec_qcomm.sharding.start_up import hosts

WORLD = 4
TWO_HOSTS = {"LOCAL_WORLD_SIZE": str(LOCAL)}
UNEVEN, WITH_EMPTY = (8, 8, 5, 1), (4, 0, 3, 2)


def sharder(policy: Policy | None = None, **kwargs: Any) -> QCommEmbeddingBagCollectionSharder:
    settings = {"hierarchical_row_wise": True, "fused_params": SGD, "agreement_timeout": timedelta(seconds=20), **kwargs}
    return QCommEmbeddingBagCollectionSharder(policy, **settings)


# TorchRec's mean over row-wise tables cannot take an empty batch.
@pytest.mark.parametrize(("sizes", "weighted"), [((7,) * 4, False), (UNEVEN, False), (UNEVEN, True), (WITH_EMPTY, True)])
def test_none_differs_from_torchrec_by_the_order_of_summation_only(
    ranks: RankPool, sizes: tuple[int, ...], weighted: bool
) -> None:
    for answer in ranks.run(WORLD, train_beside_native, HIERARCHICAL, sizes, weighted, 4, env=TWO_HOSTS):
        assert answer["output"] <= 1, answer
        assert answer["weights"] <= 1, answer


@pytest.mark.parametrize("weighted", [False, True], ids=["mean", "weighted"])
def test_so_does_a_variable_batch(ranks: RankPool, weighted: bool) -> None:
    for answer in ranks.run(WORLD, beside_native_reduced, HIERARCHICAL, weighted, 4, env=TWO_HOSTS):
        assert answer["output"] <= 1, answer
        assert answer["weights"] <= 1, answer


@pytest.mark.parametrize("policy", [MIXED, HOPS], ids=["mixed", "per link"])
@pytest.mark.parametrize(("sizes", "weighted"), [(UNEVEN, False), (WITH_EMPTY, True)])
def test_quantized_within_the_sum_of_both_hops_bounds(
    ranks: RankPool, sizes: tuple[int, ...], weighted: bool, policy: Policy
) -> None:
    answers = ranks.run(WORLD, quantized_step, HIERARCHICAL, sizes, policy, weighted, env=TWO_HOSTS)
    for rank, answer in enumerate(answers):
        assert answer["forward"] <= 1, answer
        assert all(over <= 1 for over in answer["backward"].values()), answer
        assert answer["forward equal"] == (sizes[rank] == 0)
        assert not any(answer["backward equal"].values())


@pytest.mark.parametrize("policy", [MIXED, HOPS], ids=["mixed", "per link"])
def test_so_is_a_variable_batch(ranks: RankPool, policy: Policy) -> None:
    for answer in ranks.run(WORLD, variable_quantized_step, HIERARCHICAL, policy, env=TWO_HOSTS):
        assert answer["forward"] <= 1, answer
        assert all(over <= 1 for over in answer["backward"].values()), answer
        assert not any(answer["forward equal"])
        assert not any(answer["backward equal"].values())


def inter_host(matrix: list[list[int]]) -> int:
    return sum(n for i, row in enumerate(matrix) for j, n in enumerate(row) if i // LOCAL != j // LOCAL)


def test_counted_bytes_are_sent_bytes_and_hosts_exchange_half(ranks: RankPool) -> None:
    """A host sends a sum where each of its two ranks sent a part; backward, a gradient crosses to a host once."""
    hierarchical, plain = (
        ranks.run(WORLD, traffic, "row_wise", UNEVEN, HOPS, batch, TABLES, asked, env=TWO_HOSTS) for asked in (True, False)
    )
    check_two_hops_by_hand(
        hierarchical, placed(TABLES, "row_wise", WORLD), lambda t, sample: 2 * UNEVEN[sample] * len(t.features)
    )
    for key in ("forward", "matrix"):
        assert LOCAL * inter_host(hierarchical[0][key]) == inter_host(plain[0][key]) > 0


def test_counted_bytes_of_variable_batches(ranks: RankPool) -> None:
    answers = ranks.run(WORLD, traffic, "row_wise", SIZES, HOPS, ragged, MEANS, True, env=TWO_HOSTS)
    check_two_hops_by_hand(answers, placed(TABLES, "row_wise", WORLD), rows_sent(steps=2))


def refusals(rank: int, world: int) -> dict[str, str]:
    """What is said by all ranks, or by the odd last one, of settings that do not fit."""

    def said(**kwargs: Any) -> str:
        try:
            shard(sharder(Policy("int8"), **kwargs), collection(), placed(TABLES, "row_wise", world))
        except QCommError as error:
            return f"{type(error).__name__}: {error}"
        return "nothing raised"

    answers = {
        "flag": said(hierarchical_row_wise=rank != world - 1),
        "uneven hosts": said(devices_per_host=3),
        "TorchRec's groups": said(devices_per_host=2),
    }
    local = os.environ.pop("LOCAL_WORLD_SIZE")
    answers["unknown hosts"] = said()
    os.environ["LOCAL_WORLD_SIZE"] = local
    return answers


def test_ranks_that_disagree_and_hosts_that_do_not_fit_are_refused(ranks: RankPool) -> None:
    for answer in ranks.run(WORLD, refusals):  # LOCAL_WORLD_SIZE is the world
        assert "DisagreementError" in answer["flag"]
        assert "ranks disagree on hierarchical_row_wise: global rank" in answer["flag"]
        assert answer["uneven hosts"].startswith("ShardingError: hierarchical_row_wise, devices per host"), answer
        assert "got 3; allowed: a divisor of 4" in answer["uneven hosts"]
        assert answer["TorchRec's groups"].startswith("ShardingError: hierarchical_row_wise: TorchRec's groups of ranks")
        assert "got [0, 1, 2, 3]; allowed: global ranks [" in answer["TorchRec's groups"]
        assert answer["unknown hosts"].startswith("ShardingError: hierarchical_row_wise: it is not known"), answer


@pytest.mark.parametrize("switch", [1, "yes", None])
def test_a_switch_is_on_or_off(switch: object) -> None:
    with pytest.raises(ShardingError, match="hierarchical_row_wise: not a switch"):
        QCommEmbeddingBagCollectionSharder(hierarchical_row_wise=switch)  # type: ignore[arg-type]


@pytest.mark.parametrize("asked", [False, True])
def test_the_key_of_a_config(asked: bool) -> None:
    (ours,) = (
        one
        for one in qc.get_sharders(qc.QCommConfig.from_dict({"batch_size": 8, **({HIERARCHICAL: True} if asked else {})}))
        if isinstance(one, QCommEmbeddingBagCollectionSharder)
    )
    assert ours.hierarchical_row_wise is asked
    with pytest.raises(qc.ConfigError, match=r"hierarchical_row_wise: .*got 'yes'"):
        qc.QCommConfig.from_dict({HIERARCHICAL: "yes"})


def degenerate(rank: int, world: int) -> dict[str, Any]:
    """One step in plain and in hierarchical mode, on hosts where both are the same; and what was logged."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    hosts.logger.addHandler(handler)
    hosts.logger.setLevel(logging.INFO)
    plan, policy = placed(TABLES, "row_wise", world), Policy("int4", "int8")
    pair = [shard(sharder(policy, hierarchical_row_wise=asked), collection(), plan) for asked in (True, False)]
    hosts.logger.removeHandler(handler)
    features = batch(TABLES, 4, seed=rank)
    first, second = (step(sharded, features, seed=rank) for sharded in pair)
    weights = [local_weights(sharded) for sharded in pair]
    return {
        "equal": torch.equal(first, second) and all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0]),
        "logged": messages,
    }


@pytest.mark.parametrize(("local", "shape"), [(1, "one rank on each host"), (2, "one host")])
def test_where_it_is_the_plain_exchange_it_says_so(ranks: RankPool, local: int, shape: str) -> None:
    for answer in ranks.run(2, degenerate, env={"LOCAL_WORLD_SIZE": str(local)}):
        assert answer["equal"]
        assert answer["logged"] == [
            f"hierarchical_row_wise: with {shape}, row-wise tables are exchanged in one hop, which does the same"
        ]


def in_2d(rank: int, world: int) -> bool:
    """A `ShardingEnv2D` with one sharding group, whose groups TorchRec makes in another way."""
    comm._INTRA_PG_2D = comm._CROSS_PG_2D = None
    replicas = [dist.new_group([peer]) for peer in range(world)]
    everyone = dist.new_group(list(range(world)))
    env = ShardingEnv2D(everyone, replicas[rank], dist.group.WORLD, DeviceMesh("cpu", [list(range(world))]))
    env.output_dtensor = False  # so that the tests' helpers know the state dict
    module, plan = collection(), placed(TABLES, "row_wise", world)
    sharded = sharder(HOPS).shard(module, plan, env, CPU, module_fqn="2d")
    load_full(sharded, {name: bag.weight.detach().clone() for name, bag in module.embedding_bags.items()})
    other = shard(sharder(HOPS), collection(), plan)
    features = batch(TABLES, UNEVEN[rank], seed=rank)
    first, second = (step(each, features, seed=rank) for each in (sharded, other))
    weights = [local_weights(each) for each in (sharded, other)]
    return torch.equal(first, second) and all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_2d_parallelism(ranks: RankPool) -> None:
    assert ranks.run(WORLD, in_2d, env=TWO_HOSTS) == [True] * WORLD
