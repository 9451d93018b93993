"""Collections of sequences as users make them besides: indices returned, indices made unique, features of several tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.types import ParameterSharding, ShardingEnv
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection

from tests.sharding.scenarios.pooled_collections import CPU
from tests.sharding.scenarios.sequences import DIM, SEQUENCES, flat, sequence_collection, sequence_gradient, sequence_plan
from tests.sharding.scenarios.tables import SGD, TableSpec, batch, load_full, local_weights
from torchrec_qcomm.sharding import QCommEmbeddingCollectionSharder

SHARED = (
    TableSpec("t0", 20, DIM, ("f0", "f1")),
    TableSpec("t1", 20, DIM, ("f1", "f2")),
    TableSpec("t2", 20, DIM, ("f0", "f3")),
    TableSpec("t3", 20, DIM, ("f4",)),
)
"""Tables that share features, whose results TorchRec names ``f0@t0``."""


def columns_anywhere(world: int) -> dict[str, ParameterSharding]:
    """Three column shards of every table, on ranks in no order, two of them on one rank."""
    plan, width = {}, DIM // 3
    for i, t in enumerate(SEQUENCES):
        owners = [(2 + i) % world, i % world, (2 + i) % world]
        shards = [ShardMetadata([0, j * width], [t.rows, width], f"rank:{rank}/cpu") for j, rank in enumerate(owners)]
        plan[t.name] = ParameterSharding("column_wise", "fused", owners, EnumerableShardingSpec(shards))
    return plan


def beside_native(rank: int, world: int, kind: str, options: set[str], sizes: tuple[int, ...]) -> dict[str, bool]:
    """Three steps of TorchRec's own and of a `none` exchange: what differs bit for bit?

    Args:
        kind: of `sequence_plan`, or ``columns anywhere``.
        options: ``indices``: returned with the vectors; ``unique``: looked up once; ``shared``: features of several tables.
        sizes: of the ranks' batches. TorchRec's own cannot return from an empty one, so there only ours is looked at.
    """
    tables = SHARED if "shared" in options else SEQUENCES
    plan = columns_anywhere(world) if kind == "columns anywhere" else sequence_plan(tables, kind, world)
    env, configs = ShardingEnv.from_process_group(dist.group.WORLD), _configs(tables)
    pair = []
    for sharder in (QCommEmbeddingCollectionSharder, EmbeddingCollectionSharder):
        module = EmbeddingCollection(tables=configs, device=CPU, need_indices="indices" in options)
        made: Any = sharder(fused_params=SGD, use_index_dedup="unique" in options)
        pair.append(made.shard(module, plan, env, CPU, module_fqn="ec"))
        load_full(pair[-1], {name: t.weight.detach() for name, t in sequence_collection(tables).embeddings.items()})
    start, answer = local_weights(pair[0]), {"outputs": True, "indices": True, "unique": "unique" not in options}
    for i in range(3):
        features = _each_once(batch(tables, sizes[rank], seed=10 * i + rank))
        with _unique_on_cpu():
            contexts = [sharded.create_context() for sharded in pair]
            looked_up = [s.input_dist(c, features).wait().wait() for s, c in zip(pair, contexts, strict=True)]
            outs = [s.compute_and_output_dist(c, x) for s, c, x in zip(pair, contexts, looked_up, strict=True)]
        given, sent = contexts[0].input_features, contexts[0].sharding_contexts
        answer["unique"] |= any(
            x.values().numel() > y.features_before_input_dist.values().numel() for x, y in zip(given, sent, strict=False)
        )
        ours, native = outs
        if sizes[rank]:
            answer["outputs"] &= list(ours.keys()) == list(native.keys()) and all(
                torch.equal(ours[f].values(), v.values()) and torch.equal(ours[f].lengths(), v.lengths())
                for f, v in native.items()
            )
            answer["indices"] &= all(_same(ours[f].weights_or_none(), v.weights_or_none()) for f, v in native.items())
            theirs = flat(native)
        else:
            answer["outputs"] &= all(v.values().shape == (0, DIM) and v.lengths().numel() == 0 for v in ours.values())
            answer["indices"] &= all(
                (v.weights_or_none() is not None and v.weights().numel() == 0) == ("indices" in options) for v in ours.values()
            )
            theirs = torch.cat([a.wait().flatten() for a in native._awaitables_per_sharding]).view(-1, DIM)
        mine = flat(ours)
        gradient = sequence_gradient(*mine.shape, seed=10 * i + rank)
        mine.backward(gradient)
        theirs.backward(gradient)
    after, wanted = (local_weights(sharded) for sharded in pair)
    return answer | {
        "weights": after.keys() == wanted.keys() and all(torch.equal(after[key], wanted[key]) for key in after),
        "moved": all(not torch.equal(after[key], start[key]) for key in after),
    }


def _configs(tables: tuple[TableSpec, ...]) -> list[EmbeddingConfig]:
    return [
        EmbeddingConfig(name=t.name, num_embeddings=t.rows, embedding_dim=t.dim, feature_names=list(t.features)) for t in tables
    ]


def _each_once(features: Any) -> Any:
    """Of features that come twice, the first."""
    keys = features.keys()
    first = [keys.index(key) for key in dict.fromkeys(keys)]
    return features if len(first) == len(keys) else features.permute(first)


def _same(ours: torch.Tensor | None, native: torch.Tensor | None) -> bool:
    return ours is native is None or (ours is not None and native is not None and torch.equal(ours, native))


@contextmanager
def _unique_on_cpu() -> Iterator[None]:
    """FBGEMM has the operator that makes indices unique on GPUs only; here is one that does the same."""
    library = torch.library.Library("fbgemm", "IMPL")
    library.impl("jagged_unique_indices", _unique, "CPU")
    try:
        yield
    finally:
        library._destroy()


def _unique(_sizes: torch.Tensor, ends: torch.Tensor, offsets: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Table by table: the number of indices is dealt out evenly over the samples of its features."""
    size = (offsets.numel() - 1) // (ends.numel() - 1)
    lengths, back, found = torch.zeros(offsets.numel() - 1, dtype=torch.int64), torch.empty_like(indices), [indices[:0]]
    for first, end in zip(ends.tolist(), ends.tolist()[1:], strict=False):
        cells, a, b = (end - first) * size, int(offsets[first * size]), int(offsets[end * size])
        unique, inverse = torch.unique(indices[a:b], return_inverse=True)
        back[a:b] = inverse + sum(map(len, found))
        found.append(unique)
        for cell in range(cells):
            lengths[first * size + cell] = len(unique) // cells + (cell < len(unique) % cells)
    return lengths, torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]), torch.cat(found), back
