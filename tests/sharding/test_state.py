"""Stochastic rounding in the exchange: the same on replay, other in every step, saved apart from TorchRec's state."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchrec_qcomm as qc
from tests.ranks import RankPool
from tests.sharding.scenarios.pooled_collections import shard, step
from tests.sharding.scenarios.sequences import SEQUENCES, feature_batch, flat, sequence_plan, shard_sequences
from tests.sharding.scenarios.tables import SGD, TABLES, batch, collection, local_weights, placed, upstream
from torchrec_qcomm.errors import ShardingError
from torchrec_qcomm.policy import Policy

STOCHASTIC = Policy({"codec": "qsgd", "bits": 8, "norm": "max"}, {"codec": "qsgd", "bits": 8, "norm": "max"})


def bags(world: int, seed: int, kind: str = "mixed_sharded", fqn: str = "ebc") -> Any:
    sharder = qc.QCommEmbeddingBagCollectionSharder(STOCHASTIC, seed=seed, fused_params=SGD)
    return shard(sharder, collection(weighted=True), placed(TABLES, kind, world), fqn)


def sequences(world: int, seed: int, kind: str = "mixed", fqn: str = "ec") -> Any:
    sharder = qc.QCommEmbeddingCollectionSharder(STOCHASTIC, seed=seed, fused_params=SGD)
    return shard_sequences(sharder, sequence_plan(SEQUENCES, kind, world), fqn=fqn)


def replayed(rank: int, world: int) -> dict[str, bool]:
    """Three steps, twice from the same seed and once from another."""
    runs, before = [], torch.get_rng_state()
    for seed in (1, 1, 2):
        sharded = bags(world, seed)
        state = torch.get_rng_state()
        outs = [step(sharded, batch(TABLES, 5, seed=10 * i + rank, weighted=True), seed=i) for i in range(3)]
        runs.append((outs, local_weights(sharded)))
        before = state if torch.equal(torch.get_rng_state(), state) else before[:0]

    def same(a: Any, b: Any) -> bool:
        return all(torch.equal(x, y) for x, y in zip(a[0], b[0], strict=True)) and all(
            torch.equal(a[1][key], b[1][key]) for key in a[1]
        )

    return {"replay": same(runs[0], runs[1]), "another seed": same(runs[0], runs[2]), "generator untouched": bool(len(before))}


def test_a_run_is_replayed_by_its_seed(ranks: RankPool) -> None:
    assert ranks.run(3, replayed) == [{"replay": True, "another seed": False, "generator untouched": True}] * 3


@pytest.mark.parametrize("kind", ["bags", "sequences"])
def test_steps(ranks: RankPool, kind: str) -> None:
    for answer in ranks.run(2, counted, kind):
        assert answer == {
            "another step differs": True,
            "evaluation is repeatable": True,
            "evaluation does not count": True,
            "steps": 2,
            "resumed": True,
            "torchrec's state dict": True,
        }


def counted(rank: int, world: int, kind: str) -> dict[str, Any]:
    """Forwards of one batch: in training each draws anew, in evaluation all alike; and what is saved brings it back."""
    model = torch.nn.ModuleDict({"sparse": bags(world, 1) if kind == "bags" else sequences(world, 1)})
    sharded = model["sparse"]
    features = batch(TABLES, 5, seed=rank, weighted=True) if kind == "bags" else feature_batch(SEQUENCES, 5, seed=rank + 1)

    def forward() -> torch.Tensor:
        out = sharded(features)
        return (out.values() if kind == "bags" else flat(out)).detach()

    keys = list(sharded.state_dict())
    first = forward()
    saved = qc.state_dict(model)
    second = forward()
    sharded.eval()
    steps = qc.state_dict(model)["sparse"]["step"]
    evaluated = [forward() for _ in range(2)]
    still = qc.state_dict(model)["sparse"]["step"]
    sharded.train()
    qc.load_state_dict(model, saved)
    return {
        "another step differs": not torch.equal(first, second),
        "evaluation is repeatable": torch.equal(*evaluated),
        "evaluation does not count": steps == still,
        "steps": steps,
        "resumed": torch.equal(forward(), second),
        "torchrec's state dict": keys == list(sharded.state_dict()) and not any("qcomm" in key for key in keys),
    }


def independent(rank: int, world: int) -> list[bool]:
    """Two collections, and the two directions of one, round the same values in other ways."""
    one, other = bags(world, 1, "table_wise", "one"), bags(world, 1, "table_wise", "other")
    features = batch(TABLES, 5, seed=rank, weighted=True)
    outs = [sharded(features).values() for sharded in (one, other)]
    for out in outs:
        out.backward(upstream(*out.shape, seed=rank))
    moved = [local_weights(sharded) for sharded in (one, other)]
    return [torch.equal(*(out.detach() for out in outs)), any(torch.equal(moved[0][key], moved[1][key]) for key in moved[0])]


def test_collections_have_streams_of_their_own(ranks: RankPool) -> None:
    assert ranks.run(2, independent) == [[False, False]] * 2


class Steps(torch.nn.Module):
    """Stands for a sharded collection."""

    def __init__(self) -> None:
        from torchrec_qcomm.state.exchange import ExchangeState as Counted

        super().__init__()
        self.qcomm_state = Counted()


def wrapped(rank: int, world: int) -> list[list[str]]:
    """The paths of two collections, whatever is around the model; one has the name that wrappers give what they wrap."""
    model = torch.nn.ModuleDict({"a": Steps(), "module": torch.nn.ModuleDict({"b": Steps()})})
    model["dense"] = torch.nn.Linear(1, 1)  # DDP wants something to reduce
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    around = torch.nn.ModuleDict({"_dmp_wrapped_module": parallel})
    return [list(qc.state_dict(each)) for each in (model, parallel, around, torch.compile(around))]


def test_paths_are_those_of_the_model_without_wrappers(ranks: RankPool) -> None:
    """`DistributedModelParallel` may wrap the model in DDP after it was loaded."""
    assert ranks.run(1, wrapped) == [[["a", "module.b"]] * 4]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "of another model: not the same collections; got \\[\\]; allowed: a, b"),
        ({"a": {"step": 1}, "b": {"step": -1}}, "load_state_dict, 'b': not a state; got {'step': -1}"),
        ({"a": {"step": 1}, "b": {"step": 1, "range": 2}}, "'b': not a state"),
        ({"a": {"step": 1}, "b": {}}, "'b': not a state"),
    ],
)
def test_a_wrong_state_changes_nothing(state: dict[str, Any], message: str) -> None:
    model = torch.nn.ModuleDict({"a": Steps(), "b": Steps()})
    with pytest.raises(ShardingError, match=message):
        qc.load_state_dict(model, state)
    assert qc.state_dict(model) == {"a": {"step": 0}, "b": {"step": 0}}
