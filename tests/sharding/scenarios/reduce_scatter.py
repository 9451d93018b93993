"""What the ranks of the reduce-scatter tests do: tables whose rows are dealt out, so that values are sums over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torchrec.distributed import comm_ops
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.modules.embedding_configs import PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.sharding.scenarios.pooled_collections import _in_feature_order, _over, _weight_bounds, shard
from tests.sharding.scenarios.tables import (
    LOCAL,
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

FEATURES = [(feature, t) for t in TABLES for feature in t.features]
WIDTH = sum(t.dim for _, t in FEATURES)


HIERARCHICAL = "hierarchical_row_wise"
"""Row-wise, summed inside hosts first: a sharding type of these tests only."""


class Dealt:
    """A plan that deals rows out, and the sums that travel under it.

    Args:
        kind: sharding type, or `HIERARCHICAL`.
        world: ranks.
    """

    def __init__(self, kind: str, world: int) -> None:
        over_all = kind in ("row_wise", HIERARCHICAL)
        self.kind, self.plan = kind, placed(TABLES, "row_wise" if over_all else kind, world)
        self.parts = world if over_all else LOCAL
        self.hosts = world // LOCAL
        self.two_hops = kind != "row_wise"

    def sharder(self, policy: Policy | None = None) -> QCommEmbeddingBagCollectionSharder:
        """Ours."""
        return QCommEmbeddingBagCollectionSharder(policy, hierarchical_row_wise=self.kind == HIERARCHICAL, fused_params=SGD)

    def cuts(self, table: str) -> list[list[Any]]:
        """The row shards of each column shard of a table."""
        shards = self.plan[table].sharding_spec.shards
        return [shards[i : i + self.parts] for i in range(0, len(shards), self.parts)]

    def shares(self, features: KeyedJaggedTensor) -> list[torch.Tensor]:
        """What each owner of a row shard sends, before any mean is taken: ``[batch, all dims]`` for each part."""
        features, shares = summed(features), []
        for part in range(self.parts):
            module = collection(weighted=True)  # sums only
            for t in TABLES:
                first, rows = self.cuts(t.name)[0][part].shard_offsets[0], self.cuts(t.name)[0][part].shard_sizes[0]
                weight = module.embedding_bags[t.name].weight.data
                weight[:first], weight[first + rows :] = 0.0, 0.0
            empty = features.stride() == 0  # an unsharded collection cannot look that up
            shares.append(torch.zeros(0, WIDTH) if empty else _in_feature_order(module(features)).detach())
        return shares

    def summed_by_host(self, shares: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What a second hop carries: for each host, the sum of what its ranks have."""
        return [sum(shares[i : i + LOCAL], start=torch.zeros(())) for i in range(0, len(shares), LOCAL)]

    def bound(self, policy: Policy, values: torch.Tensor, direction: str, link: str) -> torch.Tensor:
        """The codecs' bounds, each over the columns that share a row on the wire."""
        resolved = policy.resolve(Table(t.name, t.rows, t.dim) for t in TABLES)
        columns = [(t.name, column[0].shard_sizes[1]) for _, t in FEATURES for column in self.cuts(t.name)]
        pieces = values.split([width for _, width in columns], dim=1)
        sites = [codecs.get(resolved.codec(table, direction, link)) for table, _ in columns]
        return torch.cat([codec.error_bound(piece) for codec, piece in zip(sites, pieces, strict=True)], dim=1)


def summed(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """The same ids for a collection that takes weights; all 1 if there are none."""
    weights = features.weights_or_none()
    ones = torch.ones(features.values().numel())
    return KeyedJaggedTensor(
        features.keys(), features.values(), lengths=features.lengths(), weights=ones if weights is None else weights
    )


def means(features: KeyedJaggedTensor, tables: Sequence[TableSpec] = TABLES) -> torch.Tensor:
    """What a sum is divided by, ``[batch, all dims]``: the number of ids for mean-pooled features, else 1."""
    lengths = features.lengths().view(len(FEATURES), -1)
    columns = [
        (lengths[i].clamp(min=1) if t.pooling == PoolingType.MEAN else torch.ones_like(lengths[i]))
        .unsqueeze(1)
        .expand(-1, t.dim)
        for i, t in enumerate(t for t in tables for _ in t.features)
    ]
    return torch.cat(columns, dim=1).float()


def train_beside_native(rank: int, world: int, kind: str, sizes: Sequence[int], weighted: bool, steps: int) -> dict[str, float]:
    """`none` beside TorchRec's synchronous collectives, which can do uneven batches on gloo; differences over what is allowed.

    Both start every step from the same weights, so that only the exchange is compared.
    """
    dealt = Dealt(kind, world)
    ours = shard(dealt.sharder(), collection(weighted=weighted), dealt.plan)
    native = shard(EmbeddingBagCollectionSharder(fused_params=SGD), collection(weighted=weighted), dealt.plan)
    worst = {"output": 0.0, "weights": 0.0}
    for i in range(steps):
        features = batch(TABLES, sizes[rank], seed=100 * i + rank, weighted=weighted)
        got = _in_feature_order(ours(features))
        comm_ops.set_use_sync_collectives(True)
        try:
            want = _in_feature_order(native(features))
            gradient = upstream(*want.shape, seed=100 * i + rank)
            want.backward(gradient)
        finally:
            comm_ops.set_use_sync_collectives(False)
        got.backward(gradient)
        if i == 0:  # the shares are those of the first weights
            shares = dealt.shares(features)
            divisor = torch.ones_like(shares[0]) if weighted else means(features)
            # Sums of W terms in another order, and the bags' own sums, which are split among ranks alike in both.
            limit = world * 2.0**-24 * sum(share.abs() for share in shares) / divisor + 2.0**-23 * want.detach().abs()
            worst["output"] = _over(got.detach() - want.detach(), limit)
        mine, theirs = local_weights(ours), local_weights(native)
        for key in mine:
            limit = 2.0**-22 * theirs[key].abs() + 2.0**-30
            worst["weights"] = max(worst["weights"], _over(mine[key] - theirs[key], limit))
        copy_shards(ours, native)
    return worst


def quantized_step(rank: int, world: int, kind: str, sizes: Sequence[int], policy: Policy, weighted: bool) -> dict[str, Any]:
    """One quantized step: errors over the sum of the bounds of all that is added up, hop by hop."""
    dealt = Dealt(kind, world)
    quantized = shard(dealt.sharder(policy), collection(weighted=weighted), dealt.plan)
    exact = shard(dealt.sharder(), collection(weighted=weighted), dealt.plan, fqn="exact")
    features = batch(TABLES, sizes[rank], seed=rank, weighted=weighted)
    got, want = (_in_feature_order(sharded(features)) for sharded in (quantized, exact))
    gradient = upstream(*want.shape, seed=rank)
    shares = dealt.shares(features)
    divisor = torch.ones_like(shares[0]) if weighted else means(features)
    sent = gradient / divisor  # the wire carries sums, and the gradients of sums

    first = "intra_host" if dealt.two_hops else "inter_host"
    forward = sum(dealt.bound(policy, share, "forward", first) for share in shares)
    backward = dealt.bound(policy, sent, "backward", "inter_host")
    if dealt.two_hops:
        # The second hop quantizes what the first has moved a little: hence 1.1.
        second = sum(dealt.bound(policy, total, "forward", "inter_host") for total in dealt.summed_by_host(shares))
        forward = 1.1 * (forward + second)
        backward = 1.1 * (backward + dealt.hosts * dealt.bound(policy, sent / dealt.hosts, "backward", "intra_host"))
    forward = forward / divisor + 2.0**-20 * sum(share.abs() for share in shares) / divisor

    before = local_weights(quantized)
    got.backward(gradient)
    want.backward(gradient)
    allowed = _weight_bounds(collection(weighted=True), summed(features), backward)
    after, exactly = local_weights(quantized), local_weights(exact)
    start, worst, equal = collection(), {}, {}
    for t in TABLES:
        for column in dealt.cuts(t.name):
            for piece in column:
                key = (t.name, piece.shard_offsets[1])
                if piece.placement.rank() != rank:
                    continue
                (row, at), (rows, width) = piece.shard_offsets, piece.shard_sizes
                part = (slice(row, row + rows), slice(at, at + width))
                slack = 2.0**-22 * start.embedding_bags[t.name].weight.detach()[part].abs()
                moved = (before[key] - after[key]) - (before[key] - exactly[key])
                worst[key] = _over(moved, allowed[t.name][part] + slack)
                equal[key] = torch.equal(after[key], exactly[key])
    return {
        "forward": _over(got.detach() - want.detach(), forward),
        "forward equal": torch.equal(got, want),
        "backward": worst,
        "backward equal": equal,
    }
