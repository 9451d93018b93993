"""Collections of sequences (EmbeddingCollection), and what the ranks of their tests do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.types import ParameterSharding, ShardingEnv
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.sharding.scenarios.pooled_collections import CPU, _over, meter_row
from tests.sharding.scenarios.tables import SGD, TableSpec, batch, load_full, local_weights
from tests.sharding.scenarios.variable_batch import SIZES, ragged
from torchrec_qcomm import codecs
from torchrec_qcomm.policy import Policy, Table
from torchrec_qcomm.sharding import QCommEmbeddingCollectionSharder, measure_traffic

DIM = 24
SEQUENCES = (
    TableSpec("t0", 40, DIM, ("f0", "f1")),
    TableSpec("t1", 30, DIM, ("f2",)),
    TableSpec("t2", 50, DIM, ("f3",)),
    TableSpec("t3", 20, DIM, ("f4",)),
)
"""Tables of one dim, as a collection of sequences has them; one has two features."""

KINDS = ("table_wise", "column_wise", "row_wise", "mixed")


def sequence_collection(tables: Sequence[TableSpec] = SEQUENCES) -> EmbeddingCollection:
    """An unsharded collection with weights that depend on table, row and column alone."""
    configs = [
        EmbeddingConfig(name=t.name, num_embeddings=t.rows, embedding_dim=t.dim, feature_names=list(t.features)) for t in tables
    ]
    module = EmbeddingCollection(tables=configs, device=CPU)
    for seed, t in enumerate(tables):
        generator = torch.Generator().manual_seed(seed)
        module.embeddings[t.name].weight.data.copy_(torch.randn(t.rows, t.dim, generator=generator))
    return module


def sequence_plan(
    tables: Sequence[TableSpec], kind: str, world: int, holders: int | None = None
) -> dict[str, ParameterSharding]:
    """Whole tables round robin over the first ``holders`` ranks (default: all), or column shards, or rows over all ranks."""
    holders = holders or world
    plan = {}
    for i, t in enumerate(tables):
        this = KINDS[i % 3] if kind == "mixed" else kind
        if this == "row_wise":
            size = -(-t.rows // world)
            cuts = [(min(rank * size, t.rows), min((rank + 1) * size, t.rows)) for rank in range(world)]
            pieces = [([a, 0], [b - a, t.dim], rank) for rank, (a, b) in enumerate(cuts)]
        elif this == "column_wise":
            # Equal halves: TorchRec takes the width of the first shard for all of them.
            half = t.dim // 2
            pieces = [([0, 0], [t.rows, half], i % holders), ([0, half], [t.rows, half], (i + 1) % holders)]
        else:
            pieces = [([0, 0], [t.rows, t.dim], i % holders)]
        shards = [ShardMetadata(offsets, sizes, f"rank:{rank}/cpu") for offsets, sizes, rank in pieces]
        plan[t.name] = ParameterSharding(this, "fused", [rank for *_, rank in pieces], EnumerableShardingSpec(shards))
    return plan


def shard_sequences(sharder: Any, plan: Any, tables: Sequence[TableSpec] = SEQUENCES, fqn: str = "ec") -> Any:
    """Shard over the default process group and give the shards the module's weights."""
    module = sequence_collection(tables)
    weights = {name: table.weight.detach().clone() for name, table in module.embeddings.items()}
    sharded = sharder.shard(module, plan, ShardingEnv.from_process_group(dist.group.WORLD), CPU, module_fqn=fqn)
    load_full(sharded, weights)
    return sharded


def flat(out: Any) -> torch.Tensor:
    """All vectors of all features ``[ids, dim]``, features by name."""
    return torch.cat([out[feature].values() for feature in sorted(out.keys())])


def feature_batch(tables: Sequence[TableSpec], size: int, seed: int) -> KeyedJaggedTensor:
    """A batch with some features empty: every third seed, ``f2`` has no id."""
    features = batch(tables, size, seed)
    if seed % 3:
        return features
    lengths = features.lengths().view(len(features.keys()), -1).clone()
    parts = list(features.values().split(features.length_per_key()))
    index = features.keys().index("f2")
    lengths[index], parts[index] = 0, parts[index][:0]
    return KeyedJaggedTensor(features.keys(), torch.cat(parts), lengths=lengths.view(-1))


def sequence_gradient(rows: int, width: int, seed: int) -> torch.Tensor:
    """A gradient of the output, of the size that a mean loss makes."""
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(10_000 + seed)) * 1e-3


def sequences_equal_native(rank: int, world: int, kind: str, sizes: Sequence[int], holders: int, steps: int) -> dict[str, Any]:
    """Train TorchRec's own and a `none` exchange on the same batches; what differs bit for bit?"""
    plan = sequence_plan(SEQUENCES, kind, world, holders)
    ours = shard_sequences(QCommEmbeddingCollectionSharder(Policy(), fused_params=SGD), plan)
    native = shard_sequences(EmbeddingCollectionSharder(fused_params=SGD), plan)
    same = True
    for i in range(steps):
        features = feature_batch(SEQUENCES, sizes[rank], seed=100 * i + rank)
        a, b = ours(features), native(features)
        if sizes[rank]:
            same &= list(a.keys()) == list(b.keys()) and all(torch.equal(v.lengths(), b[f].lengths()) for f, v in a.items())
            a, b = flat(a), flat(b)
        else:
            same &= all(vectors.lengths().numel() == 0 and vectors.values().shape == (0, DIM) for vectors in a.values())
            a, b = (
                flat(a),
                torch.cat([torch.flatten(awaitable.wait()) for awaitable in b._awaitables_per_sharding]).view(-1, DIM),
            )
        same &= torch.equal(a, b)
        for out in (a, b):
            out.backward(sequence_gradient(*out.shape, seed=100 * i + rank))
    a, b = local_weights(ours), local_weights(native)
    untouched = local_weights(shard_sequences(EmbeddingCollectionSharder(fused_params=SGD), plan))
    return {
        "ours is ours": type(ours).__name__,
        "outputs equal": same,
        "weights equal": a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a),
        "weights moved": all(not torch.equal(a[key], untouched[key]) for key in a),
        "shards": len(a),
        "keys": list(ours.state_dict()) == list(native.state_dict()),
    }


def quantized_sequences(rank: int, world: int, kind: str, sizes: Sequence[int], policy: Policy) -> dict[str, Any]:
    """One step of a quantized and of an exact exchange: errors over bounds, element by element, and what stayed equal.

    The codecs of the tables must not depend on the link.
    """
    plan = sequence_plan(SEQUENCES, kind, world, max(world - 1, 1))
    quantized = shard_sequences(QCommEmbeddingCollectionSharder(policy, fused_params=SGD), plan)
    exact = shard_sequences(QCommEmbeddingCollectionSharder(fused_params=SGD), plan, fqn="exact")
    resolved = policy.resolve(Table(t.name, t.rows, t.dim) for t in SEQUENCES)
    features = feature_batch(SEQUENCES, sizes[rank], seed=rank + 1)
    got, want = quantized(features), exact(features)
    owners = {feature: t for t in SEQUENCES for feature in t.features}
    rows = [(owners[feature], len(want[feature].values())) for feature in sorted(want.keys())]
    got, want = flat(got), flat(want)
    gradient = sequence_gradient(*want.shape, seed=rank)

    def bound(values: torch.Tensor, direction: str) -> torch.Tensor:
        """A row's scale is that of its column shard."""
        parts = []
        for (table, _), piece in zip(rows, values.split([count for _, count in rows]), strict=True):
            codec = codecs.get(resolved.codec(table.name, direction, "intra_host"))
            width = [shard.shard_sizes[1] for shard in plan[table.name].sharding_spec.shards]
            cuts = width if sum(width) == table.dim else [table.dim]
            parts.append(torch.cat([codec.error_bound(part) for part in piece.split(cuts, dim=1)], dim=1))
        return torch.cat(parts)

    def moved(sharded: Any, out: torch.Tensor) -> dict[tuple[str, int], torch.Tensor]:
        before = local_weights(sharded)
        out.backward(gradient)
        return {key: before[key] - after for key, after in local_weights(sharded).items()}

    applied, exactly = moved(quantized, got), moved(exact, want)
    reference = sequence_collection()
    if want.shape[0]:
        flat(reference(features)).backward(bound(gradient, "backward"))
    over, equal = {}, {}
    for t in SEQUENCES:
        weight = reference.embeddings[t.name].weight
        limit = torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
        dist.all_reduce(limit)
        # The update itself rounds, in both runs: an ulp of the weight each.
        limit = limit / world + 2**-22 * weight.detach().abs()
        for shard, owner in zip(plan[t.name].sharding_spec.shards, plan[t.name].ranks, strict=True):
            if owner == rank:
                (row, at), (count, width) = shard.shard_offsets, shard.shard_sizes
                delta = applied[t.name, at] - exactly[t.name, at]
                over[t.name, at] = _over(delta, limit[row : row + count, at : at + width])
                equal[t.name, at] = not delta.any()
    return {
        "forward over bound": _over(got.detach() - want.detach(), bound(want.detach(), "forward")),
        "forward equal": torch.equal(got, want),
        "backward over bound": over,
        "backward equal": equal,
    }


def sequence_traffic(rank: int, world: int, kind: str, sizes: Sequence[int], policy: Policy) -> dict[str, Any]:
    """One measured step: what the meter says, what really went into all_to_all_single, and the ids of this rank's samples."""
    plan = sequence_plan(SEQUENCES, kind, world, max(world - 1, 1))
    sharded = shard_sequences(QCommEmbeddingCollectionSharder(policy, fused_params=SGD), plan)
    spied = [0] * world
    real = dist.all_to_all_single

    def spy(output: torch.Tensor, input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if input.dtype == torch.uint8:  # ids and lengths are int64
            for peer, size in enumerate(kwargs["input_split_sizes"]):
                spied[peer] += size
        return real(output, input, *args, **kwargs)

    features = feature_batch(SEQUENCES, sizes[rank], seed=rank)
    with measure_traffic(sharded) as meter:
        dist.all_to_all_single = spy
        try:
            out = flat(sharded(features))
            out.backward(sequence_gradient(*out.shape, seed=rank))
        finally:
            dist.all_to_all_single = real
        everyone = meter.gather()
    return {
        "spied": spied,
        "local row": meter_row(everyone, rank, world),
        "forward": everyone.matrix(world, include_self=True, direction="forward"),
        "matrix": everyone.matrix(world, include_self=True),
        "ids": {
            feature: part.tolist()
            for feature, part in zip(features.keys(), features.values().split(features.length_per_key()), strict=True)
        },
    }


def variable_sequences(rank: int, world: int, kind: str) -> dict[str, bool]:
    """Variable batch per feature beside TorchRec.

    TorchRec pads the batch before the exchange, and writes the vectors out after it with a kernel that loses the gradient on
    CPU. So gradients are given to what the output dists return.
    """
    plan = sequence_plan(SEQUENCES, kind, world)
    pairs = [
        shard_sequences(sharder, plan)
        for sharder in (QCommEmbeddingCollectionSharder(fused_params=SGD), EmbeddingCollectionSharder(fused_params=SGD))
    ]
    start = local_weights(pairs[0])
    features = ragged(SEQUENCES, SIZES[rank], seed=rank)
    outs = [flat(sharded(features)) for sharded in pairs]
    outs[1].backward(sequence_gradient(*outs[1].shape, seed=rank))
    kept = any(not torch.equal(weight, start[key]) for key, weight in local_weights(pairs[1]).items())
    answers = {"outputs equal": torch.equal(*outs), "upstream keeps the gradient": kept}
    for sharded in pairs:
        for seed, exchange in enumerate(sharded(features)._awaitables_per_sharding):
            vectors = exchange.wait()
            vectors.backward(sequence_gradient(*vectors.shape, seed=seed))
    ours, native = (local_weights(sharded) for sharded in pairs)
    answers["weights equal"] = all(torch.equal(ours[key], native[key]) for key in native)
    answers["weights moved"] = any(not torch.equal(ours[key], start[key]) for key in start)
    return answers
