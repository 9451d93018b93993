"""Small collections, plans made by hand, and batches, for the tests of the exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec
from torchrec.distributed.types import ParameterSharding
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


@dataclass(frozen=True)
class TableSpec:
    """A table of a test model."""

    name: str
    rows: int
    dim: int
    features: tuple[str, ...]
    pooling: PoolingType = PoolingType.SUM


TABLES = (
    TableSpec("t0", 40, 64, ("f0", "f1")),
    TableSpec("t1", 30, 20, ("f2",), PoolingType.MEAN),
    TableSpec("t2", 50, 48, ("f3",)),
    TableSpec("t3", 20, 32, ("f4",)),
)
"""Four tables of unequal dims: one has two features, one is mean-pooled."""

MIXED_TYPES = ("table_wise", "column_wise", "table_column_wise", "data_parallel")

ROWS_DEALT_OUT = ("row_wise", "table_row_wise", "grid_shard")
LOCAL = 2
"""Ranks of a host, in the tests of shardings that look at hosts."""

SGD = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 1.0}
"""A fused optimizer whose update is the applied gradient itself."""


def collection(tables: Sequence[TableSpec] = TABLES, *, weighted: bool = False) -> EmbeddingBagCollection:
    """An unsharded collection with weights that depend on table, row and column alone."""
    configs = [
        EmbeddingBagConfig(
            name=t.name,
            num_embeddings=t.rows,
            embedding_dim=t.dim,
            feature_names=list(t.features),
            # TorchRec's weighted lookups know sums only.
            pooling=PoolingType.SUM if weighted else t.pooling,
        )
        for t in tables
    ]
    module = EmbeddingBagCollection(tables=configs, is_weighted=weighted, device=torch.device("cpu"))
    for seed, t in enumerate(tables):
        generator = torch.Generator().manual_seed(seed)
        module.embedding_bags[t.name].weight.data.copy_(torch.randn(t.rows, t.dim, generator=generator))
    return module


def placed(
    tables: Sequence[TableSpec], sharding_type: str, world: int, *, holders: int | None = None
) -> dict[str, ParameterSharding]:
    """A plan: whole tables round robin, or two column shards each, over the first ``holders`` ranks (default: all).

    ``mixed`` gives every table another type, the last one ``data_parallel``; ``mixed_sharded`` leaves that one out.
    """
    holders = holders or world
    plan = {}
    for i, t in enumerate(tables):
        kind = {"mixed": MIXED_TYPES[i], "mixed_sharded": MIXED_TYPES[i % 3]}.get(sharding_type, sharding_type)
        if kind == "data_parallel":
            plan[t.name] = ParameterSharding(sharding_type=kind, compute_kernel="dense", ranks=list(range(world)))
            continue
        if kind in ROWS_DEALT_OUT:
            plan[t.name] = _rows_dealt_out(kind, i, t, world)
            continue
        if kind == "table_wise":
            widths, owners = [t.dim], [i % holders]
        else:
            narrow = t.dim // 16 * 4  # FBGEMM wants multiples of four
            widths, owners = [narrow, t.dim - narrow], [i % holders, (i + 1) % holders]
        shards, column = [], 0
        for width, owner in zip(widths, owners, strict=True):
            shards.append(ShardMetadata([0, column], [t.rows, width], f"rank:{owner}/cpu"))
            column += width
        plan[t.name] = ParameterSharding(
            sharding_type=kind,
            compute_kernel="fused",
            ranks=owners,
            sharding_spec=EnumerableShardingSpec(shards),
        )
    return plan


def _rows_dealt_out(kind: str, i: int, t: TableSpec, world: int) -> ParameterSharding:
    """Rows in equal blocks, the last one with what is left, over all ranks or those of one host of two.

    A grid table is cut into two column shards first, on two hosts if there are.
    """
    local = world if kind == "row_wise" else LOCAL
    hosts = world // local
    size = -(-t.rows // local)
    cuts = [(min(rank * size, t.rows), min((rank + 1) * size, t.rows)) for rank in range(local)]
    narrow = t.dim // 16 * 4
    columns = [(0, narrow), (narrow, t.dim - narrow)] if kind == "grid_shard" else [(0, t.dim)]
    shards, ranks = [], []
    for j, (column, width) in enumerate(columns):
        for rank, (a, b) in enumerate(cuts, start=(i + j) % hosts * local):
            shards.append(ShardMetadata([a, column], [b - a, width], f"rank:{rank}/cpu"))
            ranks.append(rank)
    # TorchRec takes the first rank of the host for table-row-wise, but every shard's for the others.
    return ParameterSharding(kind, "fused", ranks, EnumerableShardingSpec(shards))


def load_full(sharded: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy whole tables into the shards of a sharded collection."""
    for key, tensor in sharded.state_dict().items():
        full = weights[key.split(".")[-2]]
        if not isinstance(tensor, ShardedTensor):  # data-parallel
            tensor.copy_(full)
            continue
        for shard in tensor.local_shards():
            shard.tensor.copy_(_cut(full, shard.metadata))


def copy_shards(source: torch.nn.Module, target: torch.nn.Module) -> None:
    """Give the shards of one sharded collection to another with the same plan."""
    for mine, theirs in zip(source.state_dict().values(), target.state_dict().values(), strict=True):
        for a, b in zip(mine.local_shards(), theirs.local_shards(), strict=True):
            b.tensor.copy_(a.tensor)


def local_weights(sharded: torch.nn.Module) -> dict[tuple[str, int], torch.Tensor]:
    """This rank's shards as ``{(table, first column): copy}``; data-parallel tables, which nothing updates here, left out.

    A rank has at most one shard of a table at a column, whatever its rows.
    """
    return {
        (key.split(".")[-2], shard.metadata.shard_offsets[1]): shard.tensor.detach().clone()
        for key, tensor in sharded.state_dict().items()
        if isinstance(tensor, ShardedTensor)
        for shard in tensor.local_shards()
    }


def batch(tables: Sequence[TableSpec], size: int, seed: int, *, weighted: bool = False, max_ids: int = 3) -> KeyedJaggedTensor:
    """``size`` samples with 0 to ``max_ids`` ids a feature."""
    generator = torch.Generator().manual_seed(seed)
    keys, lengths, values = [], [], []
    for t in tables:
        for feature in t.features:
            keys.append(feature)
            lengths.append(torch.randint(0, max_ids + 1, (size,), generator=generator))
            values.append(torch.randint(0, t.rows, (int(lengths[-1].sum()),), generator=generator))
    ids = torch.cat(values)
    return KeyedJaggedTensor(
        keys,
        ids,
        lengths=torch.cat(lengths),
        weights=torch.rand(ids.numel(), generator=generator) + 0.5 if weighted else None,
    )


def upstream(size: int, width: int, seed: int) -> torch.Tensor:
    """A gradient of the output ``[size, width]``, of the size that a mean loss makes."""
    return torch.randn(size, width, generator=torch.Generator().manual_seed(10_000 + seed)) * 1e-3


def _cut(full: torch.Tensor, metadata: Any) -> torch.Tensor:
    (row, column), (rows, columns) = metadata.shard_offsets, metadata.shard_sizes
    return full[row : row + rows, column : column + columns]
