"""Modules that hold a collection, and what ranks do to test them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection, ManagedCollisionEmbeddingCollection
from torchrec.modules.mc_modules import DistanceLFU_EvictionPolicy, ManagedCollisionCollection, MCHManagedCollisionModule

from tests.sharding.scenarios.entry_points import (
    SIZE,
    Values,
    gradients_for,
    pulled,
    same,
    sharded_by,
    values_of,
    whole_weights,
    world_env,
)
from tests.sharding.scenarios.pooled_collections import CPU
from tests.sharding.scenarios.sequences import DIM, sequence_collection
from tests.sharding.scenarios.tables import TABLES, TableSpec, batch, collection, load_full, local_weights, placed
from torchrec_qcomm import codecs
from torchrec_qcomm.errors import QCommError
from torchrec_qcomm.policy import Policy, Rule
from torchrec_qcomm.sharding import measure_traffic

MOST_IDS = 3


def over_int8(got: Values, want: Values) -> float:
    """The largest error as a share of what int8 may make of a whole row."""
    shares = [
        (got[feature] - value).abs() / codecs.get("int8").error_bound(value).clamp_min(1e-30) for feature, value in want.items()
    ]
    return max(float(share.max()) for share in shares)


# -- feature processors


def position_weighted(weights: Values | None = None) -> FeatureProcessedEmbeddingBagCollection:
    """Bags whose ids are weighted by learned weights of their positions."""
    processors = PositionWeightedModuleCollection({feature: MOST_IDS for t in TABLES for feature in t.features})
    for seed, weight in enumerate(processors.position_weights.values()):
        weight.data.copy_(torch.rand(MOST_IDS, generator=torch.Generator().manual_seed(seed)) + 0.5)
    bags = collection(weighted=True)
    for name, weight in (weights or {}).items():
        bags.embedding_bags[name].weight.data.copy_(weight)
    return FeatureProcessedEmbeddingBagCollection(bags, processors)


def position_gradients(module: Any) -> torch.Tensor:
    """``[features, positions]``, summed over the ranks: each has those of the tables that it holds."""
    weights = module._feature_processors.position_weights
    total = torch.stack([torch.zeros(MOST_IDS) if weights[key].grad is None else weights[key].grad for key in sorted(weights)])
    dist.all_reduce(total)
    return total


def feature_processed(rank: int, world: int, kind: str, policy: Policy) -> dict[str, Any]:
    """Two steps of ours and of TorchRec's own, and the errors of the first over what int8 may make."""
    plan, env = placed(TABLES, kind, world), world_env()
    runs = []
    for each in (policy, None):
        sharded = sharded_by(each, position_weighted(), plan, env)
        inner = sharded._embedding_bag_collection
        load_full(inner, whole_weights())
        outputs, gradients = [], []
        for i in range(2):
            sharded.zero_grad()
            features = batch(TABLES, SIZE, seed=10 * i + rank, max_ids=MOST_IDS)
            outputs.append(pulled(sharded(features), seed=10 * i + rank))
            gradients.append(position_gradients(sharded))
        runs.append((type(inner).__name__, outputs, gradients, local_weights(inner)))
    (kind_of_ours, got, got_gradients, weights), (_, want, want_gradients, native_weights) = runs
    # A gradient that is off moves that of a position weight by as much as the rows at that position have of it.
    unsharded = position_weighted({name: weight.abs() for name, weight in whole_weights().items()})
    values = values_of(unsharded(batch(TABLES, SIZE, seed=rank, max_ids=MOST_IDS)))
    bounds = {f: codecs.get("int8").error_bound(gradient) for f, gradient in gradients_for(values, seed=rank).items()}
    torch.stack([(values[feature] * bounds[feature]).sum() for feature in values]).sum().backward()
    allowed = position_gradients(unsharded) / world
    return {
        "type": kind_of_ours,
        "outputs": all(same(a, b) for a, b in zip(got, want, strict=True)),
        "gradients": all(torch.equal(a, b) for a, b in zip(got_gradients, want_gradients, strict=True)),
        "weights": same(weights, native_weights),
        "some": bool((want_gradients[0].abs().sum(dim=1) > 0).all()),
        "output over int8": over_int8(got[0], want[0]),
        "gradient over int8": float(((got_gradients[0] - want_gradients[0]).abs() / allowed).max()),
    }


# -- managed collisions

MANAGED = (TableSpec("t0", 40, DIM, ("f0",)), TableSpec("t1", 30, DIM, ("f1",)), TableSpec("t2", 50, DIM, ("f2", "f3")))
RAW_IDS = 1000


def managed(configs: Any) -> ManagedCollisionCollection:
    """Ids that come often get rows of their own; every second batch moves some in and others out."""
    modules = {
        config.name: MCHManagedCollisionModule(
            zch_size=config.num_embeddings,
            device=CPU,
            eviction_policy=DistanceLFU_EvictionPolicy(),
            eviction_interval=2,
            input_hash_size=RAW_IDS,
            input_hash_func=lambda ids, size: ids % size,
        )
        for config in configs
    }
    return ManagedCollisionCollection(modules, embedding_configs=configs)


def managed_bags() -> nn.Module:
    bags = collection(MANAGED)
    return ManagedCollisionEmbeddingBagCollection(bags, managed(bags.embedding_bag_configs()), return_remapped_features=True)


def managed_sequences() -> nn.Module:
    sequences = sequence_collection(MANAGED)
    collisions = managed(sequences.embedding_configs())
    return ManagedCollisionEmbeddingCollection(sequences, collisions, return_remapped_features=True)


MANAGED_MODULES: dict[str, Callable[[], nn.Module]] = {"bags": managed_bags, "sequences": managed_sequences}


def managed_collisions(rank: int, world: int, kind: str, policy: Policy) -> dict[str, Any]:
    """Four steps of ours and of TorchRec's own, the last one measured."""
    plan, env = placed(MANAGED, "row_wise", world), world_env()
    raw = tuple(TableSpec(t.name, RAW_IDS, t.dim, t.features) for t in MANAGED)
    batches = [batch(raw, SIZE, seed=10 * i + rank) for i in range(4)]
    runs = []
    for each in (policy, None):
        sharded = sharded_by(each, MANAGED_MODULES[kind](), plan, env)
        load_full(sharded._embedding_module, whole_weights(MANAGED))
        outputs, ids = [], []
        for i, features in enumerate(batches):
            with measure_traffic(sharded) if each is not None and i == 3 else nullcontext() as meter:
                out, remapped = sharded(features)
                outputs.append(pulled(out, seed=10 * i + rank))
            ids.append(remapped.values())
        sent = {} if meter is None else meter.gather().by_table(include_self=True)
        runs.append((type(sharded._embedding_module).__name__, outputs, ids, local_weights(sharded._embedding_module), sent))
    (kind_of_ours, got, got_ids, weights, sent), (_, want, want_ids, native_weights, _) = runs
    ids_by_feature = torch.tensor(batches[3].length_per_key())
    dist.all_reduce(ids_by_feature)
    by_feature = dict(zip(batches[3].keys(), ids_by_feature.tolist(), strict=True))
    return {
        "type": kind_of_ours,
        "outputs": [same(a, b) for a, b in zip(got, want, strict=True)],
        "ids": all(torch.equal(a, b) for a, b in zip(got_ids, want_ids, strict=True)),
        "ids moved": not torch.equal(want_ids[0].unique(), want_ids[1].unique()),
        "weights": same(weights, native_weights),
        "error": max(float((got[0][f] - value).norm() / value.norm()) for f, value in want[0].items() if value.numel()),
        "wire": {key: cell.wire_bytes for key, cell in sent.items()},
        # Every owner sends a partial sum for every sample; a vector is sent by the one owner of its id.
        "rows": {
            t.name: world * world * SIZE * len(t.features) if kind == "bags" else sum(by_feature[f] for f in t.features)
            for t in MANAGED
        },
    }


def managed_without_samples(rank: int, world: int, policy: Policy) -> dict[str, Any]:
    """A step in which the last rank has no sample; TorchRec's own collection of sequences fails on such a rank."""
    sharded = sharded_by(policy, managed_sequences(), placed(MANAGED, "row_wise", world), world_env())
    load_full(sharded._embedding_module, whole_weights(MANAGED))
    before = local_weights(sharded._embedding_module)
    raw = tuple(TableSpec(t.name, RAW_IDS, t.dim, t.features) for t in MANAGED)
    size = SIZE if rank < world - 1 else 0
    out, _ = sharded(batch(raw, size, seed=rank))
    vectors = torch.cat([out[feature].values() for feature in sorted(out.keys())])
    vectors.backward(torch.ones_like(vectors))
    after = local_weights(sharded._embedding_module)
    return {
        "rows": len(vectors),
        "lengths": {len(out[feature].lengths()) for feature in out.keys()},  # noqa: SIM118  (lazy, and no dict)
        "moved": any(not torch.equal(before[key], after[key]) for key in before),
    }


def rules_of_managed_collisions(rank: int, world: int, kind: str) -> str:
    """A rule that matches nothing, in a policy of a module whose ids go around the collection's input dist."""
    typo = Policy(rules=(Rule(tables="t9", forward="int8"),))
    sharded = sharded_by(typo, MANAGED_MODULES[kind](), placed(MANAGED, "row_wise", world), world_env())
    try:
        sharded(batch(MANAGED, SIZE, seed=rank))
    except QCommError as error:
        return f"{type(error).__name__}: {error}"
    return "trained"
