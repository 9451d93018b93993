"""What the ranks of the reduce-scatter tests do: row-wise tables, whose samples' values are sums over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torchrec.distributed import comm_ops
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.modules.embedding_configs import PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.sharding.models import SGD, TABLES, batch, collection, local_weights, placed, upstream
from tests.sharding.scenarios import _in_feature_order, _over, shard
from torchrec_qcomm import codecs
from torchrec_qcomm.policy import Policy, Table
from torchrec_qcomm.sharding import QCommEmbeddingBagCollectionSharder

FEATURES = [(feature, t) for t in TABLES for feature in t.features]


def summed(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """The same ids for a collection that takes weights; all 1 if there are none."""
    weights = features.weights_or_none()
    ones = torch.ones(features.values().numel())
    return KeyedJaggedTensor(
        features.keys(), features.values(), lengths=features.lengths(), weights=ones if weights is None else weights
    )


def partial_sums(features: KeyedJaggedTensor, plan: Any, world: int) -> list[torch.Tensor]:
    """For each owner, its share of the sums before any mean is taken: what goes over the wire. ``[batch, all dims]``."""
    shares, features = [], summed(features)
    for rank in range(world):
        module = collection(weighted=True)  # sums only
        for t in TABLES:
            (first, _), (rows, _) = (
                getattr(plan[t.name].sharding_spec.shards[rank], k) for k in ("shard_offsets", "shard_sizes")
            )
            weight = module.embedding_bags[t.name].weight.data
            weight[:first], weight[first + rows :] = 0.0, 0.0
        shares.append(_in_feature_order(module(features)).detach() if features.stride() else torch.zeros(0, _width()))
    return shares


def _width() -> int:
    return sum(t.dim for _, t in FEATURES)


def means(features: Any) -> torch.Tensor:
    """What a sum is divided by, ``[batch, all dims]``: the number of ids for mean-pooled features, else 1."""
    lengths = features.lengths().view(len(FEATURES), -1)
    columns = [
        (lengths[i].clamp(min=1) if t.pooling == PoolingType.MEAN else torch.ones_like(lengths[i]))
        .unsqueeze(1)
        .expand(-1, t.dim)
        for i, (_, t) in enumerate(FEATURES)
    ]
    return torch.cat(columns, dim=1).float()


def train_beside_native(rank: int, world: int, sizes: Sequence[int], weighted: bool, steps: int) -> dict[str, float]:
    """`none` beside TorchRec's synchronous collectives, which can do uneven batches on gloo; differences over what is allowed.

    The weights of both are made equal again before every step, so that only the exchange is compared.
    """
    plan = placed(TABLES, "row_wise", world)
    ours = shard(QCommEmbeddingBagCollectionSharder(fused_params=SGD), collection(weighted=weighted), plan)
    native = shard(EmbeddingBagCollectionSharder(fused_params=SGD), collection(weighted=weighted), plan)
    worst = {"output": 0.0, "weights": 0.0}
    for i in range(steps):
        features = batch(TABLES, sizes[rank], seed=100 * i + rank, weighted=weighted)
        shares = partial_sums(features, plan, world)
        divisor = torch.ones_like(shares[0]) if weighted else means(features)
        if i:
            native.load_state_dict(ours.state_dict())
            shares = None  # the weights have moved on: only the weights' update is compared from the second step on
        got = ours(features)
        comm_ops.set_use_sync_collectives(True)
        try:
            want = native(features)
            want_values = _in_feature_order(want)
            gradient = upstream(*want_values.shape, seed=100 * i + rank)
            want_values.backward(gradient)
        finally:
            comm_ops.set_use_sync_collectives(False)
        got_values = _in_feature_order(got)
        got_values.backward(gradient)
        if shares is not None:
            # Sums of W terms in another order, and of the bag's own terms in both.
            limit = (
                2 * world * 2.0**-24 * sum(share.abs() for share in shares) / divisor + 2.0**-22 * want_values.detach().abs()
            )
            worst["output"] = max(worst["output"], _over(got_values.detach() - want_values.detach(), limit))
        mine, theirs = local_weights(ours), local_weights(native)
        for key in mine:
            limit = 2.0**-22 * theirs[key].abs() + 2.0**-30
            worst["weights"] = max(worst["weights"], _over(mine[key] - theirs[key], limit))
    return worst


def quantized_step(rank: int, world: int, sizes: Sequence[int], policy: Policy, weighted: bool) -> dict[str, Any]:
    """One quantized step: errors over the sum of the owners' bounds, forward; over the gradients' bounds, backward."""
    plan = placed(TABLES, "row_wise", world)
    quantized = shard(QCommEmbeddingBagCollectionSharder(policy, fused_params=SGD), collection(weighted=weighted), plan)
    exact = shard(QCommEmbeddingBagCollectionSharder(fused_params=SGD), collection(weighted=weighted), plan, fqn="exact")
    resolved = policy.resolve(Table(t.name, t.rows, t.dim) for t in TABLES)
    features = batch(TABLES, sizes[rank], seed=rank, weighted=weighted)
    got, want = (_in_feature_order(sharded(features)) for sharded in (quantized, exact))
    shares = partial_sums(features, plan, world)
    divisor = torch.ones_like(shares[0]) if weighted else means(features)
    gradient = upstream(*want.shape, seed=rank)

    def bound(values: torch.Tensor, direction: str) -> torch.Tensor:
        pieces = values.split([t.dim for _, t in FEATURES], dim=1)
        sites = [codecs.get(resolved.codec(t.name, direction, "intra_host")) for _, t in FEATURES]
        return torch.cat([codec.error_bound(piece) for codec, piece in zip(sites, pieces, strict=True)], dim=1)

    limit = sum(bound(share, "forward") for share in shares) / divisor
    limit = limit + 2.0**-20 * sum(share.abs() for share in shares) / divisor  # the bags' own sums round, in another order

    before = local_weights(quantized)
    got.backward(gradient)
    want.backward(gradient)
    sent = gradient / divisor  # the wire carries gradients of the sums
    allowed = _weight_bounds(features, bound(sent, "backward"))
    start, worst, equal = collection(), {}, {}
    for (table, column), after in local_weights(exact).items():
        (first, _), (rows, _) = (getattr(plan[table].sharding_spec.shards[rank], k) for k in ("shard_offsets", "shard_sizes"))
        part = slice(first, first + rows)
        delta, exactly = before[table, column] - local_weights(quantized)[table, column], before[table, column] - after
        slack = 2.0**-22 * start.embedding_bags[table].weight.detach()[part].abs()
        worst[table] = _over(delta - exactly, allowed[table][part] + slack)
        equal[table] = torch.equal(delta, exactly)
    return {
        "forward": _over(got.detach() - want.detach(), limit),
        "forward equal": torch.equal(got, want),
        "backward": worst,
        "backward equal": equal,
    }


def _weight_bounds(features: KeyedJaggedTensor, output_bounds: torch.Tensor) -> dict[str, torch.Tensor]:
    """The sums' bounds scattered to the weights that were looked up, over all ranks."""
    module = collection(weighted=True)
    if output_bounds.shape[0]:
        _in_feature_order(module(summed(features))).backward(output_bounds)
    bounds = {}
    for name, bag in module.embedding_bags.items():
        total = torch.zeros_like(bag.weight) if bag.weight.grad is None else bag.weight.grad
        dist.all_reduce(total)
        bounds[name] = total / dist.get_world_size()
    return bounds
