"""Variable batch per feature: batches of distinct rows and where they go, and what ranks do with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torchrec.distributed import comm_ops
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.modules.embedding_configs import PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.sharding.scenarios import pooled_collections, reduce_scatter
from tests.sharding.scenarios.pooled_collections import shard, step
from tests.sharding.scenarios.tables import (
    LOCAL,
    ROWS_DEALT_OUT,
    SGD,
    TABLES,
    TableSpec,
    batch,
    collection,
    copy_shards,
    local_weights,
    placed,
    upstream,
)
from torchrec_qcomm import codecs
from torchrec_qcomm.policy import Policy, Table
from torchrec_qcomm.sharding import QCommEmbeddingBagCollectionSharder

MEANS = tuple(replace(t, pooling=PoolingType.MEAN) for t in TABLES)
SUMS = tuple(replace(t, pooling=PoolingType.SUM) for t in TABLES)
"""One pooling for all tables of a rank: of variable batches FBGEMM's CPU lookups can do only one kind."""

Ragged = tuple[int, tuple[int, ...]]
"""A rank's batch, and how many distinct rows each feature has in it."""

SIZES: tuple[Ragged, ...] = ((8, (3, 5, 1, 7, 2)), (9, (6, 1, 2, 4, 9)), (5, (2, 4, 1, 5, 3)), (4, (1, 1, 1, 1, 1)))
"""Other sizes on every rank and for every feature, down to one row for a whole batch."""


def ragged(tables: Sequence[TableSpec], size: Ragged, seed: int, *, weighted: bool = False) -> KeyedJaggedTensor:
    """Each feature's distinct rows, and inverse indices that use all of them."""
    full, rows = size
    generator = torch.Generator().manual_seed(seed)
    features = [(feature, t) for t in tables for feature in t.features]
    lengths, ids, inverse = [], [], []
    for (_, t), n in zip(features, rows, strict=True):
        lengths.append(torch.randint(0, 4, (n,), generator=generator))
        lengths[-1][:1] += 1  # so that every feature looks something up
        ids.append(torch.randint(0, t.rows, (int(lengths[-1].sum()),), generator=generator))
        again = torch.randint(0, max(n, 1), (full - n,), generator=generator)
        inverse.append(torch.cat([torch.arange(n), again])[torch.randperm(full, generator=generator)])
    keys, values = [feature for feature, _ in features], torch.cat(ids)
    return KeyedJaggedTensor(
        keys,
        values,
        lengths=torch.cat(lengths),
        weights=torch.rand(values.numel(), generator=generator) + 0.5 if weighted else None,
        stride_per_key_per_rank=[[n] for n in rows],
        inverse_indices=(keys, torch.stack(inverse)),
    )


def expanded(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """The same batch with every row written out as often as it is used."""
    inverse = features.inverse_indices()[1].tolist()
    lengths, ids, weights = [], [], []
    for key, rows in zip(features.keys(), inverse, strict=True):
        jagged = features[key]
        sizes = jagged.lengths().tolist()
        lengths += [sizes[row] for row in rows]
        ids += [jagged.values().split(sizes)[row] for row in rows]
        if features.weights_or_none() is not None:
            weights += [jagged.weights().split(sizes)[row] for row in rows]
    return KeyedJaggedTensor(
        features.keys(), torch.cat(ids), lengths=torch.tensor(lengths), weights=torch.cat(weights) if weights else None
    )


def pooled(kind: str, world: int) -> tuple[TableSpec, ...]:
    """Means, but over grid tables, where they are refused, and over hosts.

    TorchRec's means of variable batches fail if it shards features in another order than they come, here host by host.
    """
    return SUMS if kind == "grid_shard" or (kind == "table_row_wise" and world > LOCAL) else MEANS


def beside_native_reduced(rank: int, world: int, kind: str, weighted: bool, steps: int) -> dict[str, float]:
    """`none` beside TorchRec's synchronous collectives; differences over what another order of the sum may do."""
    dealt, tables = reduce_scatter.Dealt(kind, world), pooled(kind, world)
    ours = shard(dealt.sharder(), collection(tables, weighted=weighted), dealt.plan)
    native = shard(EmbeddingBagCollectionSharder(fused_params=SGD), collection(tables, weighted=weighted), dealt.plan)
    worst = {"output": 0.0, "weights": 0.0}
    for i in range(steps):
        features = ragged(TABLES, SIZES[rank], seed=100 * i + rank, weighted=weighted)
        got = pooled_collections._in_feature_order(ours(features))
        gradient = upstream(*got.shape, seed=100 * i + rank)
        comm_ops.set_use_sync_collectives(True)
        try:
            want = pooled_collections._in_feature_order(native(features))
            want.backward(gradient)
        finally:
            comm_ops.set_use_sync_collectives(False)
        got.backward(gradient)
        if i == 0:  # the shares are those of the first weights
            shares = dealt.shares(expanded(features))
            divisor = torch.ones_like(shares[0]) if weighted else reduce_scatter.means(expanded(features), tables)
            limit = world * 2.0**-24 * sum(share.abs() for share in shares) / divisor
            worst["output"] = pooled_collections._over(got.detach() - want.detach(), limit)
        mine, theirs = local_weights(ours), local_weights(native)
        for key in mine:
            limit = 2.0**-22 * theirs[key].abs() + 2.0**-30
            worst["weights"] = max(worst["weights"], pooled_collections._over(mine[key] - theirs[key], limit))
        copy_shards(ours, native)
    return worst


def beside_unsharded(rank: int, world: int, kind: str, holders: int, weighted: bool) -> dict[str, float]:
    """One step of `none` beside the collection before it was sharded; differences over what another order of sums may do.

    The tables lie on the first ``holders`` ranks.
    """
    plan = placed(TABLES, kind, holders)
    sharded = shard(QCommEmbeddingBagCollectionSharder(fused_params=SGD), collection(SUMS, weighted=weighted), plan)
    features = ragged(TABLES, SIZES[rank], seed=rank, weighted=weighted)
    full = expanded(features)
    whole, sizes = (collection(SUMS, weighted=weighted) for _ in range(2))
    for bag in sizes.embedding_bags.values():
        bag.weight.data.abs_()
    got, want, summed = (pooled_collections._in_feature_order(out) for out in (sharded(features), whole(full), sizes(full)))
    gradient = upstream(*want.shape, seed=rank)
    got.backward(gradient)
    want.backward(gradient)
    terms = world + 4  # ranks, and ids in a bag
    applied, worst = local_weights(sharded), 0.0
    for t in TABLES:
        weight = whole.embedding_bags[t.name].weight
        dist.all_reduce(weight.grad)
        for piece in plan[t.name].sharding_spec.shards:
            if piece.placement.rank() == rank:
                (row, at), (rows, width) = piece.shard_offsets, piece.shard_sizes
                part = (slice(row, row + rows), slice(at, at + width))
                start = weight.detach()[part]
                limit = 2.0**-22 * start.abs() + 2.0**-28
                difference = applied[t.name, at] - (start - weight.grad[part] / world)
                worst = max(worst, pooled_collections._over(difference, limit))
    return {
        "output": pooled_collections._over(got.detach() - want.detach(), terms * 2.0**-24 * summed.detach()),
        "weights": worst,
        "moved": float(max(bag.weight.grad.abs().max() for bag in whole.embedding_bags.values())),
    }


def quantized_step(rank: int, world: int, kind: str, policy: Policy) -> dict[str, Any]:
    """One quantized step beside an exact one: errors over bounds, and what stayed equal.

    Forward, what travels is a distinct row; backward, the sum of the gradients of all places that use it.
    """
    dealt = reduce_scatter.Dealt(kind, world) if kind in (*ROWS_DEALT_OUT, reduce_scatter.HIERARCHICAL) else None
    plan = dealt.plan if dealt else placed(TABLES, kind, world, holders=world - 1)
    tables = pooled(kind, world)
    ours = dealt.sharder if dealt else partial(QCommEmbeddingBagCollectionSharder, fused_params=SGD)
    quantized = shard(ours(policy), collection(tables), plan)
    exact = shard(ours(), collection(tables), plan, fqn="exact")
    resolved = policy.resolve(Table(t.name, t.rows, t.dim) for t in TABLES)
    features = ragged(TABLES, SIZES[rank], seed=rank)
    full = expanded(features)
    got, want = (pooled_collections._in_feature_order(sharded(features)) for sharded in (quantized, exact))
    columns = [
        (index, t.name, width)
        for index, (_, t) in enumerate(reduce_scatter.FEATURES)
        for width in {piece.shard_offsets[1]: piece.shard_sizes[1] for piece in plan[t.name].sharding_spec.shards}.values()
    ]

    def by_column(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return values.split([width for _, _, width in columns], dim=1)

    def bound(values: torch.Tensor, table: str, direction: str, link: str) -> torch.Tensor:
        return codecs.get(resolved.codec(table, direction, link)).error_bound(values)

    def backward_bound(values: torch.Tensor, table: str) -> torch.Tensor:
        """Of all hops together, as `reduce_scatter.quantized_step` has it."""
        first = bound(values, table, "backward", "inter_host")
        if not (dealt and dealt.two_hops):
            return first
        return 1.1 * (first + dealt.hosts * bound(values / dealt.hosts, table, "backward", "intra_host"))

    def travelling_bound(gradient: torch.Tensor) -> torch.Tensor:
        """The bound of every distinct row's summed gradient, at the first place that uses the row."""
        bounds = []
        for (index, table, width), piece in zip(columns, by_column(gradient), strict=True):
            inverse = features.inverse_indices()[1][index]
            n = features.stride_per_key()[index]
            sums = backward_bound(torch.zeros(n, width).index_add(0, inverse, piece), table)
            first = [inverse.tolist().index(row) for row in range(n)]
            bounds.append(torch.zeros_like(piece).index_copy(0, torch.tensor(first), sums))
        return torch.cat(bounds, dim=1)

    def forward_bound(values: torch.Tensor, link: str) -> torch.Tensor:
        pieces = zip(columns, by_column(values), strict=True)
        return torch.cat([bound(piece, table, "forward", link) for (_, table, _), piece in pieces], dim=1)

    shares = dealt.shares(full) if dealt else [want.detach()]
    divisor = reduce_scatter.means(full, tables) if dealt else torch.ones_like(want)
    if dealt and dealt.two_hops:
        forward = sum(forward_bound(share, "intra_host") for share in shares)
        forward = 1.1 * (forward + sum(forward_bound(total, "inter_host") for total in dealt.summed_by_host(shares)))
    else:
        forward = sum(forward_bound(share, "inter_host") for share in shares)
    # A sum over ranks is rounded in both runs.
    slack = 2.0**-20 * sum(share.abs() for share in shares) if dealt else 0.0
    gradient = upstream(*want.shape, seed=rank)
    limits = travelling_bound(gradient / divisor)
    sums = (collection(weighted=True), reduce_scatter.summed(full)) if dealt else (collection(MEANS), full)
    allowed = pooled_collections._weight_bounds(*sums, limits)

    before = local_weights(quantized)
    got.backward(gradient)
    want.backward(gradient)
    after, exactly = local_weights(quantized), local_weights(exact)
    start, worst = collection(), {}
    for t in TABLES:
        for piece in plan[t.name].sharding_spec.shards:
            if piece.placement.rank() != rank:
                continue
            (row, at), (rows, width) = piece.shard_offsets, piece.shard_sizes
            key, part = (t.name, at), (slice(row, row + rows), slice(at, at + width))
            limit = allowed[t.name][part] + 2.0**-22 * start.embedding_bags[t.name].weight.detach()[part].abs()
            moved = (before[key] - after[key]) - (before[key] - exactly[key])
            worst[key] = pooled_collections._over(moved, limit)
    sent, exactly_sent = by_column(got.detach()), by_column(want.detach())
    return {
        "shape": tuple(got.shape),
        "forward": pooled_collections._over(got.detach() - want.detach(), (forward + slack) / divisor),
        "forward equal": [torch.equal(a, b) for a, b in zip(sent, exactly_sent, strict=True)],
        "backward": worst,
        "backward equal": {key: torch.equal(after[key], exactly[key]) for key in after},
    }


def alternating(rank: int, world: int) -> list[bool]:
    """Variable and plain batches in turn through the same dists, two of them in flight at once."""
    plan = placed(TABLES, "column_wise", world)
    pair = [
        shard(sharder(fused_params=SGD), collection(MEANS), plan)
        for sharder in (QCommEmbeddingBagCollectionSharder, EmbeddingBagCollectionSharder)
    ]
    first = [step(sharded, ragged(TABLES, SIZES[rank], seed=rank), seed=rank) for sharded in pair]
    second = [step(sharded, batch(TABLES, 3 + rank, seed=rank), seed=rank) for sharded in pair]
    third = []
    for sharded in pair:
        a, b = (sharded(ragged(TABLES, SIZES[rank], seed=seed + rank)) for seed in (10, 20))
        late, early = b.values(), a.values()
        (early.square().sum() + late.sum()).backward()
        third.append(torch.cat([early.detach(), late.detach()]))
    ours, native = (local_weights(sharded) for sharded in pair)
    return [*(torch.equal(*outs) for outs in (first, second, third)), all(torch.equal(ours[key], native[key]) for key in ours)]
