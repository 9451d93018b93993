"""Sharded collections in the situations of reported faults; what ranks do and see."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _remote_device
from torchrec.distributed import comm
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embedding_sharding import EmbeddingShardingContext
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import ShardingEnv
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.sharding.scenarios.exchange_alone import watched
from tests.sharding.scenarios.hops import hop
from tests.sharding.scenarios.pooled_collections import CPU, shard, step
from tests.sharding.scenarios.sequences import SEQUENCES, feature_batch, flat, sequence_gradient, sequence_plan, shard_sequences
from tests.sharding.scenarios.tables import SGD, TABLES, batch, collection, load_full, local_weights, placed
from tests.sharding.scenarios.variable_batch import SIZES, ragged
from torchrec_qcomm import codecs
from torchrec_qcomm.collectives import Observers
from torchrec_qcomm.errors import QCommError
from torchrec_qcomm.policy import Policy, Table
from torchrec_qcomm.sharding import QCommEmbeddingBagCollectionSharder, QCommEmbeddingCollectionSharder, measure_traffic
from torchrec_qcomm.sharding.dists.pooled import QCommPooledEmbeddingDist
from torchrec_qcomm.sharding.precision import TableCodecs
from torchrec_qcomm.wire import Column

INT8 = Policy("int8", "int8")


def codecs_in_force(rank: int, world: int, kind: str, policy: Policy) -> list[dict[Any, float]]:
    """Bytes of a value by table, direction, source and destination: of a plain batch, and of one that varies by feature."""
    plan, found = placed(TABLES, kind, world), []
    for features in (batch(TABLES, 6, seed=rank, weighted=True), ragged(TABLES, SIZES[rank], seed=rank, weighted=True)):
        # TorchRec's own modules take only the kind of batch that was their first.
        sharder = QCommEmbeddingBagCollectionSharder(policy, fused_params=SGD)
        sharded = shard(sharder, collection(weighted=True), plan)
        with measure_traffic(sharded) as meter:
            step(sharded, features, seed=rank)
            everyone = meter.gather()
        found.append(
            {
                (flow.table, flow.direction, flow.source, flow.destination): cell.wire_bytes / cell.values
                for flow, cell in everyone.flows(include_self=True)
            }
        )
    return found


def _sequences(sharded: Any, features: KeyedJaggedTensor, seed: int) -> torch.Tensor:
    """One forward and backward of a collection of sequences."""
    out = flat(sharded(features))
    out.backward(sequence_gradient(*out.shape, seed=seed))
    return out.detach()


def now_and_then_empty(rank: int, world: int, kind: str, sequences: bool, steps: int) -> dict[str, Any]:
    """Every rank is without samples in other steps than its neighbour, and all of them in every seventh.

    Not with sequences, of which TorchRec's own module fails if no rank has a sample.
    """
    if sequences:
        sharded = shard_sequences(
            QCommEmbeddingCollectionSharder(INT8, fused_params=SGD), sequence_plan(SEQUENCES, kind, world, world - 1)
        )
    else:
        plan = placed(TABLES, kind, world, holders=world - 1)
        # TorchRec's mean over row-wise tables cannot take an empty batch.
        sharded = shard(QCommEmbeddingBagCollectionSharder(INT8, fused_params=SGD), collection(weighted=True), plan)
    before, launched, shapes = local_weights(sharded), set(), set()
    for i in range(steps):
        size = 0 if (i + rank) % 2 or (i % 7 == 6 and not sequences) else 1 + (i + rank) % 3
        with watched() as launches:
            if sequences:
                out = _sequences(sharded, feature_batch(SEQUENCES, size, seed=i * world + rank), seed=i)
            else:
                out = step(sharded, batch(TABLES, size, seed=i * world + rank, weighted=True), seed=i)
                shapes.add((out.shape[0] == size, out.shape[1]))
        launched.add(tuple(launch.name for launch in launches if launch.dtype == torch.uint8))
    after = local_weights(sharded)
    return {
        "launched": launched,
        "shapes": shapes,
        "finite": bool(out.isfinite().all()) and all(bool(weight.isfinite().all()) for weight in after.values()),
        "moved": all(not torch.equal(before[key], after[key]) for key in before),
    }


def no_ids(rank: int, world: int, sequences: bool, size: int) -> tuple[Any, ...]:
    """All features are there, and none of ``size`` samples has an id for any of them: shape, all zero, weights as before."""
    keys = [feature for t in (SEQUENCES if sequences else TABLES) for feature in t.features]
    lengths = torch.zeros(size * len(keys), dtype=torch.int64)
    features = KeyedJaggedTensor(keys, torch.empty(0, dtype=torch.int64), lengths=lengths)
    if sequences:
        sharder = QCommEmbeddingCollectionSharder(INT8, fused_params=SGD)
        sharded = shard_sequences(sharder, sequence_plan(SEQUENCES, "mixed", world))
    else:
        plan = placed(TABLES, "mixed_sharded", world)
        sharded = shard(QCommEmbeddingBagCollectionSharder(INT8, fused_params=SGD), collection(), plan)
    before = local_weights(sharded)
    out = (_sequences if sequences else step)(sharded, features, seed=rank)
    after = local_weights(sharded)
    return tuple(out.shape), bool((out == 0).all()), all(torch.equal(before[key], after[key]) for key in before)


def no_sequences_anywhere(rank: int, world: int) -> list[str]:
    """What TorchRec's own collection of sequences and ours say if no rank has a sample."""
    said = []
    for sharder in (EmbeddingCollectionSharder, QCommEmbeddingCollectionSharder):
        sharded = shard_sequences(sharder(fused_params=SGD), sequence_plan(SEQUENCES, "table_wise", world))
        try:
            sharded(batch(SEQUENCES, 0, seed=0)).wait()
            said.append("went on")
        except RuntimeError as error:
            said.append(str(error))
    return said


def to_the_next_rank(rank: int, world: int) -> dict[str, Any]:
    """Table ``t{i}`` is on rank ``i``, and a rank has ids for the table of the rank before it only."""
    plan = sequence_plan(SEQUENCES, "table_wise", world)
    full = batch(SEQUENCES, 5, seed=rank)
    wanted = SEQUENCES[(rank - 1) % world].features
    lengths, parts = full.lengths().view(len(full.keys()), -1).clone(), list(full.values().split(full.length_per_key()))
    for i, key in enumerate(full.keys()):
        if key not in wanted:
            lengths[i], parts[i] = 0, parts[i][:0]
    features = KeyedJaggedTensor(full.keys(), torch.cat(parts), lengths=lengths.view(-1))
    ours = shard_sequences(QCommEmbeddingCollectionSharder(fused_params=SGD), plan)
    native = shard_sequences(EmbeddingCollectionSharder(fused_params=SGD), plan)
    with watched() as launches:
        got = _sequences(ours, features, seed=rank)
    want = _sequences(native, features, seed=rank)
    sent = [launch.splits for launch in launches if launch.dtype == torch.uint8]
    mine, theirs = local_weights(ours), local_weights(native)
    return {
        "to": [[peer for peer, size in enumerate(splits or []) if size] for splits in sent],
        "equal": torch.equal(got, want) and all(torch.equal(mine[key], theirs[key]) for key in mine),
        "ids": int(features.lengths().sum()),
    }


def in_a_sub_group(rank: int, world: int, members: Sequence[int], kind: str, policy: Policy) -> dict[str, Any] | None:
    """Only some ranks shard and train, over a group of their own; the others do nothing."""
    comm._INTRA_PG = comm._CROSS_PG = None
    group = dist.new_group(list(members))
    if rank not in members:
        return None
    # Its constructor would make a device mesh of the world's first ranks, whichever are in the group.
    env = ShardingEnv(len(members), group.rank())
    env.process_group = group
    outs, weights, traffic = [], [], None
    for sharder in (
        QCommEmbeddingBagCollectionSharder(policy, fused_params=SGD),
        EmbeddingBagCollectionSharder(fused_params=SGD),
    ):
        module = collection()
        full = {name: bag.weight.detach().clone() for name, bag in module.embedding_bags.items()}
        plan = placed(TABLES, kind, len(members))
        for sharding in plan.values():  # ranks are of the group, placements of the world
            for piece in sharding.sharding_spec.shards:
                piece.placement = _remote_device(f"rank:{members[piece.placement.rank()]}/cpu")
        sharded = sharder.shard(module, plan, env, CPU, module_fqn="ebc")
        load_full(sharded, full)
        features = batch(TABLES, 5, seed=rank)
        if traffic is None:
            with measure_traffic(sharded) as meter:
                outs.append(step(sharded, features, seed=rank))
            traffic = meter.gather(group)
        else:
            outs.append(step(sharded, features, seed=rank))
        weights.append(local_weights(sharded))
    error = float((outs[0] - outs[1]).abs().max() / outs[1].abs().max())
    return {
        "equal": torch.equal(*outs) and all(torch.equal(weights[0][key], weights[1][key]) for key in weights[1]),
        "error": error,
        "between": {(flow.source, flow.destination) for flow, _ in traffic.flows(include_self=True)},
    }


def collectives_of_a_step(rank: int, world: int, kind: str, sequences: bool) -> list[Counter[str]]:
    """How many collectives a forward and backward launches, ours and TorchRec's own, after the first."""
    found = []
    for ours in (True, False):
        if sequences:
            sharder = (QCommEmbeddingCollectionSharder if ours else EmbeddingCollectionSharder)(fused_params=SGD)
            sharded = shard_sequences(sharder, sequence_plan(SEQUENCES, kind, world))
        else:
            sharder = (QCommEmbeddingBagCollectionSharder if ours else EmbeddingBagCollectionSharder)(fused_params=SGD)
            sharded = shard(sharder, collection(), placed(TABLES, kind, world))
        for _ in range(2):
            with watched() as launches:
                if sequences:
                    _sequences(sharded, batch(SEQUENCES, 4, seed=rank), seed=rank)
                else:
                    step(sharded, batch(TABLES, 4, seed=rank), seed=rank)
        found.append(Counter(launch.name for launch in launches))
    return found


def stops_early(rank: int, world: int) -> str:
    """The last rank makes one exchange less than the others; what do they hear?"""
    group = dist.new_group(list(range(world)), timeout=timedelta(seconds=2))
    store = dist.distributed_c10d._get_default_store()
    sites = TableCodecs(INT8.resolve([Table("a", 10, 4)]), None, codecs.get)
    columns = [[Column("a", 4)], *[[]] * (world - 1)]
    output_dist = QCommPooledEmbeddingDist(hop(group, columns, torch.float32, sites, Observers()))
    context = EmbeddingShardingContext(batch_size_per_rank=[2] * world)
    said = "went on"
    for i in range(2):
        if rank == world - 1 and i == 1:
            said = "stopped"
            break
        try:
            output_dist(torch.ones(2 * world, 4) if rank == 0 else torch.empty(0), context).wait()
        except RuntimeError as error:
            said = f"{type(error).__name__}: {error}"
    # Whoever ends takes its connections along, and the others would hear of that instead.
    store.set(f"heard{rank}", said)
    store.wait([f"heard{peer}" for peer in range(world)], timedelta(seconds=50))
    return said


def hosts_of_another_size(rank: int, world: int, kind: str, policy: Policy) -> str:
    """The last rank was started with another LOCAL_WORLD_SIZE."""
    if rank == world - 1:
        os.environ["LOCAL_WORLD_SIZE"] = "1"
    sharder = QCommEmbeddingBagCollectionSharder(policy, fused_params=SGD, agreement_timeout=timedelta(seconds=20))
    try:
        sharded = shard(sharder, collection(weighted=True), placed(TABLES, kind, world))
    except QCommError as error:
        return f"{type(error).__name__}: {error}"
    out = step(sharded, batch(TABLES, 4, seed=rank, weighted=True), seed=rank)
    return "trained" if bool(out.isfinite().all()) else "not finite"
