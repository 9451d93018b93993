"""Pooled collections beside TorchRec's own; what ranks do. Every function returns plain values; the tests judge them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torchrec.distributed import comm
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from tests.sharding.scenarios.tables import (
    SGD,
    TABLES,
    TableSpec,
    batch,
    collection,
    load_full,
    local_weights,
    placed,
    upstream,
)
from torchrec_qcomm import codecs
from torchrec_qcomm.policy import Policy, Table
from torchrec_qcomm.sharding import QCommEmbeddingBagCollectionSharder, measure_traffic

CPU = torch.device("cpu")


def shard(sharder: Any, module: EmbeddingBagCollection, plan: Any, fqn: str = "ebc") -> Any:
    """Shard over the default process group and give the shards the module's weights."""
    # TorchRec keeps the groups of the first host layout that a process saw; each task here has groups of its own.
    comm._INTRA_PG = comm._CROSS_PG = None
    weights = {name: bag.weight.detach().clone() for name, bag in module.embedding_bags.items()}
    sharded = sharder.shard(module, plan, ShardingEnv.from_process_group(dist.group.WORLD), CPU, module_fqn=fqn)
    load_full(sharded, weights)
    return sharded


def step(sharded: Any, features: Any, seed: int) -> torch.Tensor:
    """One forward and backward; returns the output."""
    out = sharded(features).values()
    out.backward(upstream(*out.shape, seed))
    return out.detach()


def equals_native(
    rank: int,
    world: int,
    sharding_type: str,
    sizes: Sequence[Any],
    weighted: bool,
    holders: int,
    steps: int,
    make: Callable[..., Any] = batch,
    tables: Sequence[TableSpec] = TABLES,
) -> dict[str, Any]:
    """Train TorchRec's own and a `none` exchange on the same batches of ``make``; what differs bit for bit?"""
    plan = placed(TABLES, sharding_type, world, holders=holders)
    ours = shard(QCommEmbeddingBagCollectionSharder(Policy(), fused_params=SGD), collection(tables, weighted=weighted), plan)
    native = shard(EmbeddingBagCollectionSharder(fused_params=SGD), collection(tables, weighted=weighted), plan)
    outputs_equal = True
    for i in range(steps):
        features = make(TABLES, sizes[rank], seed=100 * i + rank, weighted=weighted)
        a, b = (step(sharded, features, seed=100 * i + rank) for sharded in (ours, native))
        outputs_equal &= torch.equal(a, b) and a.dtype == b.dtype
    start = collection()
    a, b = local_weights(ours), local_weights(native)
    return {
        "ours is ours": type(ours).__name__,
        "outputs equal": outputs_equal,
        "weights equal": a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a),
        "weights moved": all(
            not torch.equal(w, start.embedding_bags[table].weight[:, column : column + w.shape[1]])
            for (table, column), w in a.items()
        ),
        "shards": len(a),
        "keys": list(ours.state_dict()) == list(native.state_dict()),
    }


def _feature_shards(plan: Any) -> list[tuple[str, str, int]]:
    """``(feature, table, width)`` of every column shard, in the order of the output ``f0, f1, ...``."""
    return [
        (feature, t.name, shard.shard_sizes[1])
        for t in TABLES
        for feature in t.features
        for shard in plan[t.name].sharding_spec.shards
    ]


def _in_feature_order(keyed: Any) -> torch.Tensor:
    """The output's columns sorted by feature name: shardings order their outputs by owner."""
    return torch.cat([keyed[feature] for feature in sorted(keyed.keys())], dim=1)


def quantized_step(rank: int, world: int, sharding_type: str, sizes: Sequence[int], policy: Policy) -> dict[str, Any]:
    """One step of a quantized and of an exact exchange: errors over bounds, element by element, and what stayed equal.

    The codecs of the tables must not depend on the link.
    """
    plan = placed(TABLES, sharding_type, world, holders=max(world - 1, 1))
    quantized = shard(QCommEmbeddingBagCollectionSharder(policy, fused_params=SGD), collection(), plan)
    exact = shard(QCommEmbeddingBagCollectionSharder(fused_params=SGD), collection(), plan, fqn="exact")
    resolved = policy.resolve(Table(t.name, t.rows, t.dim) for t in TABLES)
    features = batch(TABLES, sizes[rank], seed=rank)
    shards = _feature_shards(plan)
    got, want = (_in_feature_order(sharded(features)) for sharded in (quantized, exact))
    gradient = upstream(*want.shape, seed=rank)

    def bound(values: torch.Tensor, direction: str) -> torch.Tensor:
        pieces = values.split([width for _, _, width in shards], dim=1)
        return torch.cat(
            [
                codecs.get(resolved.codec(table, direction, "intra_host")).error_bound(piece)
                for (_, table, _), piece in zip(shards, pieces, strict=True)
            ],
            dim=1,
        )

    def moved(sharded: Any, out: torch.Tensor) -> dict[tuple[str, int], torch.Tensor]:
        before = local_weights(sharded)
        out.backward(gradient)
        return {key: before[key] - after for key, after in local_weights(sharded).items()}

    applied, exactly = moved(quantized, got), moved(exact, want)
    allowed = _weight_bounds(collection(), features, bound(gradient, "backward"))
    weights, worst = collection(), {}
    for (table, column), delta in exactly.items():
        part = slice(column, column + delta.shape[1])
        # The update itself rounds, in both runs: an ulp of the weight each.
        limit = allowed[table][:, part] + 2**-22 * weights.embedding_bags[table].weight.detach()[:, part].abs()
        worst[table] = max(worst.get(table, 0.0), _over(applied[table, column] - delta, limit))
    columns = want.detach().split([width for _, _, width in shards], dim=1)
    sent = got.detach().split([width for _, _, width in shards], dim=1)
    forward_equal: dict[str, bool] = {}
    for (_, table, _), a, b in zip(shards, sent, columns, strict=True):
        forward_equal[table] = forward_equal.get(table, True) and torch.equal(a, b)
    backward_equal: dict[str, bool] = {}
    for (table, column), delta in exactly.items():
        backward_equal[table] = backward_equal.get(table, True) and torch.equal(applied[table, column], delta)
    return {
        "forward over bound": _over(got.detach() - want.detach(), bound(want.detach(), "forward")),
        "backward over bound": worst,
        "forward equal": forward_equal,
        "backward equal": backward_equal,
        "finite": bool(got.isfinite().all()),
    }


def _over(error: torch.Tensor, limit: torch.Tensor) -> float:
    """The largest error as a share of what is allowed there."""
    if error.numel() == 0:
        return 0.0
    return float((error.abs() / limit.clamp_min(torch.finfo(torch.float32).tiny)).max())


def _weight_bounds(module: EmbeddingBagCollection, features: Any, output_bounds: torch.Tensor) -> dict[str, torch.Tensor]:
    """How far the applied gradient of each weight may be off: its lookups' bounds, pooled like gradients, over all ranks."""
    if output_bounds.shape[0]:  # an unsharded collection cannot look up an empty batch
        _in_feature_order(module(features)).backward(output_bounds)
    bounds = {}
    for name, bag in module.embedding_bags.items():
        total = torch.zeros_like(bag.weight) if bag.weight.grad is None else bag.weight.grad
        dist.all_reduce(total)
        bounds[name] = total / dist.get_world_size()
    return bounds


def traffic(
    rank: int,
    world: int,
    sharding_type: str,
    sizes: Sequence[Any],
    policy: Policy,
    make: Callable[..., Any] = batch,
    tables: Sequence[TableSpec] = TABLES,
    hierarchical: bool = False,
) -> dict[str, Any]:
    """Two measured steps: what the meter says, and what really went into all_to_all_single."""
    plan = placed(TABLES, sharding_type, world, holders=max(world - 1, 1))
    module = collection(tables, weighted=sharding_type == "grid_shard")  # whose means are refused
    sharder = QCommEmbeddingBagCollectionSharder(policy, hierarchical_row_wise=hierarchical, fused_params=SGD)
    sharded = shard(sharder, module, plan)
    spied: list[int] = [0] * world
    real = dist.all_to_all_single

    def spy(output: torch.Tensor, input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if input.dtype == torch.uint8:  # ids and lengths are int64
            peers = dist.get_process_group_ranks(kwargs["group"])
            for peer, size in zip(peers, kwargs["input_split_sizes"], strict=True):
                spied[peer] += size
        return real(output, input, *args, **kwargs)

    batches = [make(TABLES, sizes[rank], seed=i, weighted=module.is_weighted()) for i in range(4)]
    step(sharded, batches[0], seed=rank)
    with measure_traffic(sharded) as meter:
        dist.all_to_all_single = spy
        try:
            for features in batches[1:3]:
                step(sharded, features, seed=rank)
        finally:
            dist.all_to_all_single = real
        everyone = meter.gather()
    step(sharded, batches[3], seed=rank)
    after = meter.gather()
    meter.reset()
    return {
        "spied": spied,
        "local row": meter_row(everyone, rank, world),
        "matrix": everyone.matrix(world, include_self=True),
        "forward": everyone.matrix(world, include_self=True, direction="forward"),
        "tables": {key: (cell.values, cell.wire_bytes) for key, cell in everyone.by_table(include_self=True).items()},
        "fp32": everyone.fp32_bytes(include_self=True),
        "counts nothing outside the block": everyone == after,
        "reset": meter.local().wire_bytes(include_self=True),
    }


def meter_row(everyone: Any, rank: int, world: int) -> list[int]:
    """What a rank sent to each other one."""
    return everyone.matrix(world, include_self=True)[rank]


def native_quantized(rank: int, world: int, precision: str) -> str:
    """What TorchRec's own quantized communication says to dims (64, 20, 48, 32) and batches of 7."""
    both = CommType(precision)
    registry = get_qcomm_codecs_registry(QCommsConfig(both, both), device=CPU)
    sharder = EmbeddingBagCollectionSharder(fused_params=SGD, qcomm_codecs_registry=registry)
    sharded = shard(sharder, collection(), placed(TABLES, "table_wise", world))
    try:
        step(sharded, batch(TABLES, 7, seed=rank), seed=rank)
    except (RuntimeError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return "trained"
