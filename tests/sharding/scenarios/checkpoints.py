"""Checkpoints of a model that go from this package's sharders to TorchRec's own and back; what ranks do with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.tensor import DTensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer

from tests.sharding.scenarios.dlrm import Setting, distributed, make_batch, optimizer_of, train
from tests.sharding.scenarios.pooled_collections import shard
from tests.sharding.scenarios.tables import SGD, TABLES, collection, placed
from torchrec_qcomm.sharding import QCommEmbeddingBagCollectionSharder

State = dict[str, Any]


def state_of(model: DistributedModelParallel, optimizer: CombinedOptimizer) -> State:
    """What is saved, and loaded in place."""
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def save(folder: str, model: DistributedModelParallel, optimizer: CombinedOptimizer) -> None:
    """One checkpoint of all ranks."""
    dcp.save(state_of(model, optimizer), checkpoint_id=folder)


def load(folder: str, model: DistributedModelParallel, optimizer: CombinedOptimizer) -> None:
    """The checkpoint into a model that stands."""
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def flat(state: Any, path: str = "") -> dict[str, Any]:
    """``{path: copy}`` of every leaf; of sharded tensors this rank's shards."""
    if isinstance(state, dict):
        return {key: leaf for name, inner in state.items() for key, leaf in flat(inner, f"{path}/{name}").items()}
    if isinstance(state, list | tuple):
        return flat(dict(enumerate(state)), path)
    if isinstance(state, ShardedTensor):
        return {f"{path}@{s.metadata.shard_offsets}": s.tensor.detach().clone() for s in state.local_shards()}
    if isinstance(state, DTensor):
        return {path: state.to_local().detach().clone()}
    return {path: state.detach().clone() if isinstance(state, torch.Tensor) else state}


def same(a: State, b: State) -> bool:
    """Whether all leaves are equal bit for bit."""
    if a.keys() != b.keys():
        return False
    return all(torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k] for k in a)


def there_and_back(rank: int, world: int, setting: Setting, folder: str) -> dict[str, Any]:
    """Train, save, load into the other kind of model, save that, load back; and train on beside a run without a break."""
    before = [make_batch(5, seed=10 * i + rank) for i in range(2)]
    after = [make_batch(5, seed=100 + 10 * i + rank) for i in range(2)]
    other = replace(setting, quantized=not setting.quantized, seed=1)

    unbroken = distributed(setting)
    unbroken_optimizer = optimizer_of(unbroken)
    start = flat(state_of(unbroken, unbroken_optimizer))
    train(unbroken, unbroken_optimizer, before)
    saved = flat(state_of(unbroken, unbroken_optimizer))
    save(f"{folder}/first", unbroken, unbroken_optimizer)

    foreign = distributed(other)
    foreign_optimizer = optimizer_of(foreign)
    # DDP orders the dense gradients anew after its first steps, so only models that made some sum alike. And what is loaded
    # must write over what is there.
    train(foreign, foreign_optimizer, before)
    fresh = flat(state_of(foreign, foreign_optimizer))
    load(f"{folder}/first", foreign, foreign_optimizer)
    crossed = flat(state_of(foreign, foreign_optimizer))
    save(f"{folder}/second", foreign, foreign_optimizer)

    resumed = distributed(replace(setting, seed=2))
    resumed_optimizer = optimizer_of(resumed)
    train(resumed, resumed_optimizer, before)
    load(f"{folder}/second", resumed, resumed_optimizer)
    back = flat(state_of(resumed, resumed_optimizer))

    logits = [train(m, o, after) for m, o in ((unbroken, unbroken_optimizer), (resumed, resumed_optimizer))]
    foreign_logits = train(foreign, foreign_optimizer, after)
    final, foreign_final = flat(state_of(resumed, resumed_optimizer)), flat(state_of(foreign, foreign_optimizer))
    return {
        "keys": list(saved) == list(crossed),
        "table states": [name for name in saved if "momentum1" in name],
        "dense states": [name for name in saved if "exp_avg" in name],
        "trained": not any(torch.equal(start[name], saved[name]) for name in saved if "momentum1" in name),
        "differed": not same(fresh, saved),
        "crossed": same(saved, crossed),
        "back": same(saved, back),
        "trains on": same(flat(state_of(unbroken, unbroken_optimizer)), final)
        and all(torch.equal(a, b) for a, b in zip(*logits, strict=True)),
        "moved on": not same(saved, final),
        "foreign trains on alike": same(final, foreign_final)
        and all(torch.equal(a, b) for a, b in zip(logits[0], foreign_logits, strict=True)),
        "foreign error": max(float((a - b).abs().max()) for a, b in zip(logits[0], foreign_logits, strict=True)),
    }


def unequal_columns(rank: int, world: int, kind: str) -> list[str]:
    """What TorchRec's own collection and ours say to their own state dicts, when columns are cut unequally."""
    said = []
    for sharder in (EmbeddingBagCollectionSharder, QCommEmbeddingBagCollectionSharder):
        sharded = shard(sharder(fused_params=SGD), collection(weighted=True), placed(TABLES, kind, world))
        try:
            sharded.load_state_dict(sharded.state_dict())
            said.append("loaded")
        except RuntimeError as error:
            said.append(str(error).split(":", 1)[1])
    return said
