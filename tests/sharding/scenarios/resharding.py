"""What ranks do to test tables that move while a model trains."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import torch
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding.dynamic_sharding import output_sharding_plans_delta
from torchrec.distributed.types import (
    EmbeddingModuleShardingPlan,
    ParameterSharding,
    ShardingPlan,
)

import torchrec_qcomm as qc
from tests.sharding.scenarios.entry_points import (
    Model,
    Values,
    fresh_groups,
    same,
    sharded_by,
    sharders_of,
    shards_of,
    trained,
    whole_weights,
    world_env,
)
from tests.sharding.scenarios.pooled_collections import CPU
from tests.sharding.scenarios.tables import SGD, TableSpec, batch, collection, load_full, placed
from torchrec_qcomm.errors import QCommError
from torchrec_qcomm.policy import Policy
from torchrec_qcomm.sharding import measure_traffic

HALVES = (TableSpec("t0", 40, 64, ("f0", "f1")), TableSpec("t1", 30, 24, ("f2",)), TableSpec("t2", 50, 48, ("f3",)))
"""Tables whose column shards are equally wide: TorchRec loads no others, and loading ends its resharding."""


def halved(world: int, shift: int) -> dict[str, ParameterSharding]:
    """Two tables in two column shards each, on successive ranks, and a whole one; all of them moved by ``shift`` ranks."""
    plan = {}
    for i, t in enumerate(HALVES):
        width = t.dim if i == 1 else t.dim // 2
        owners = [(i + shift + j) % world for j in range(t.dim // width)]
        shards = [ShardMetadata([0, j * width], [t.rows, width], f"rank:{owner}/cpu") for j, owner in enumerate(owners)]
        kind = "table_wise" if i == 1 else "column_wise"
        plan[t.name] = ParameterSharding(kind, "fused", owners, EnumerableShardingSpec(shards))
    return plan


def hand_over(sharding: ParameterSharding, ranks: list[int]) -> None:
    """Change which rank holds which shard."""
    sharding.ranks = ranks
    for piece, rank in zip(sharding.sharding_spec.shards, ranks, strict=True):
        piece.placement = torch.distributed._remote_device(f"rank:{rank}/cpu")


def resharded(rank: int, world: int, policy: Policy) -> dict[str, Any]:
    """Two steps, then the shards of two tables move on by one rank, then two more steps."""
    fresh_groups()
    runs = []
    for each in (policy, None):
        torch.manual_seed(0)
        model = Model(HALVES)
        apply_optimizer_in_backward(torch.optim.Adagrad, model.bags.parameters(), {"lr": 0.02})
        old, new = ({"bags": EmbeddingModuleShardingPlan(halved(world, shift))} for shift in (0, 1))
        new["bags"]["t2"] = old["bags"]["t2"]
        delta = output_sharding_plans_delta(old, new)
        sharded = DistributedModelParallel(model, device=CPU, plan=ShardingPlan(old), sharders=sharders_of(each))
        load_full(sharded.module.bags, whole_weights(HALVES))
        steps = [trained(sharded, rank, HALVES)]
        owners = [list(shards_of(sharded))]
        sharded.reshard(delta, "bags")
        with measure_traffic(sharded) if each is not None else nullcontext() as meter:
            steps.append(trained(sharded, rank, HALVES, seed=5))
        dists = {type(output_dist).__name__ for output_dist in sharded.module.bags._output_dists}
        owners.append(list(shards_of(sharded)))
        sent = None if meter is None else meter.gather().by_table(include_self=True)
        runs.append((steps, dists, owners, sent, optimizer_state(sharded)))
    (ours, dists, owners, sent, state), (native, _, native_owners, _, native_state) = runs
    return {
        "equal": [same(a, b) for a, b in zip(ours, native, strict=True)],
        "state": bool(state) and same(state, native_state),
        "dists": dists,
        "moved": owners[0] != owners[1] and owners == native_owners,
        "traffic": {key: cell.wire_bytes for key, cell in (sent or {}).items()},
    }


def ranges_kept(rank: int, world: int) -> dict[str, Any]:
    """A rank hands over the only table that it sends, which has a range: what is known before and after, and saved."""
    tables = tuple(TableSpec(f"t{i}", 40, 8, (f"f{i}",)) for i in range(world))
    sharder = qc.QCommEmbeddingBagCollectionSharder(Policy(forward={"codec": "int8", "range": {"ema": 0.5}}), fused_params=SGD)

    def model(plan: Any) -> Any:
        return sharder.shard(collection(tables), copy.deepcopy(plan), world_env(), CPU, module_fqn="m")

    old = placed(tables, "table_wise", world)
    new = copy.deepcopy(old)
    hand_over(new[tables[-1].name], [0])
    sharded, known = model(old), []
    for i in range(2):
        sharded(batch(tables, 4, seed=10 * i + rank)).values()
        known.append(qc.state_dict(torch.nn.ModuleDict({"m": sharded})))
        if i == 0:
            sharded.update_shards({tables[-1].name: new[tables[-1].name]}, sharded._env, CPU)
    qc.load_state_dict(torch.nn.ModuleDict({"m": model(new)}), known[1])
    return {
        f"updates {i}": {
            name.split()[0]: int(saved["updates"])
            for exchanges in state["m"].get("ranges", {}).values()
            for tables in exchanges.values()
            for name, saved in tables.items()
        }
        for i, state in enumerate(known)
    }


def optimizer_state(model: Any) -> Values:
    """This rank's shards of the fused optimizer's state."""
    return {
        f"{key} {name} {shard.metadata.shard_offsets}": shard.tensor.clone()
        for key, states in model.fused_optimizer.state_dict()["state"].items()
        for name, tensor in states.items()
        if isinstance(tensor, ShardedTensor)
        for shard in tensor.local_shards()
    }


def hash_of_text(rank: int, world: int) -> int:
    return hash("a text")


def resharding_refused(rank: int, world: int, how: str) -> tuple[str, int]:
    """What a rank says to changes that ranks do not share, or that TorchRec cannot make; and its hash of a text."""
    current = halved(world, 0)
    if how == "widths":  # of a table that is not to move
        current["t1"] = placed(HALVES, "column_wise", world)["t1"]
    if how == "from a rank with two":
        hand_over(current["t0"], [1, 1])
    sharded = sharded_by(Policy(), collection(HALVES), current, world_env())
    plan = halved(world, 1)
    changes = {name: plan[name] for name in ("t0", "t2")}
    if how == "plan" and rank == world - 1:
        changes["t0"] = halved(world, 0)["t0"]
    if how == "tables" and rank == world - 1:
        del changes["t2"]
    if how == "order" and rank == world - 1:
        changes = {name: changes[name] for name in ("t2", "t0")}
    if how == "type":
        changes["t0"] = placed(HALVES, "row_wise", world)["t0"]
    if how == "kind":
        changes["t1"] = placed(HALVES, "column_wise", world)["t1"]
    if how == "to a rank with two":
        hand_over(changes["t0"], [1, 1])
    if how == "unknown":
        changes["t9"] = changes["t0"]
    if how == "one fails" and rank == world - 1:
        changes["t0"].sharding_type = "future_wise"
    try:
        sharded.update_shards(changes, sharded._env, CPU)
    except QCommError as error:
        return f"{type(error).__name__}: {error}", hash("a text")
    return "moved", hash("a text")
