"""What ranks do to test the ways into sharding other than a plain sharder, and what is made of the result."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torchrec.distributed import comm
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.shard import shard, shard_modules
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.train_pipeline.tracing import Tracer
from torchrec.distributed.types import (
    EmbeddingModuleShardingPlan,
    LazyAwaitable,
    ShardingEnv,
    ShardingEnv2D,
    ShardingPlan,
)
from torchrec.modules.embedding_configs import PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from tests.sharding.scenarios.pooled_collections import CPU
from tests.sharding.scenarios.sequences import SEQUENCES, sequence_collection, sequence_plan
from tests.sharding.scenarios.tables import TABLES, TableSpec, batch, collection, load_full, placed, upstream
from torchrec_qcomm import get_sharders
from torchrec_qcomm.policy import Policy
from torchrec_qcomm.sharding import measure_traffic

SIZE = 6
"""Samples of a rank: TorchRec's own row-wise exchange wants equal batches on gloo."""

Values = dict[str, torch.Tensor]


def fresh_groups() -> None:
    """TorchRec keeps the groups of the first host layout that a process saw; each task here has groups of its own."""
    comm._INTRA_PG = comm._CROSS_PG = comm._INTRA_PG_2D = comm._CROSS_PG_2D = None


def world_env() -> ShardingEnv:
    fresh_groups()
    return ShardingEnv.from_process_group(dist.group.WORLD)


def sharders_of(policy: Policy | None) -> list[Any]:
    """What a job takes: ours, or TorchRec's own without a policy."""
    return get_default_sharders() if policy is None else get_sharders(policy)


def sharded_by(policy: Policy | None, module: nn.Module, plan: Any, env: ShardingEnv) -> Any:
    """Sharded with what a job takes, from one seed on: managed collisions draw random numbers."""
    torch.manual_seed(0)
    sharder = {sharder.module_type: sharder for sharder in sharders_of(policy)}[type(module)]
    return sharder.shard(module, copy.deepcopy(plan), env, CPU, module_fqn="m")


def whole_weights(tables: tuple[TableSpec, ...] = TABLES) -> Values:
    return {name: bag.weight.detach().clone() for name, bag in collection(tables).embedding_bags.items()}


def values_of(out: Any) -> Values:
    """By feature: of a pooled output its columns, of a sequence its rows."""
    out = out.wait() if isinstance(out, LazyAwaitable) else out
    if isinstance(out, KeyedTensor):
        return {feature: out[feature] for feature in out.keys()}  # noqa: SIM118
    return {feature: jagged.values() for feature, jagged in out.items()}


def gradients_for(values: Values, seed: int) -> Values:
    """A gradient for each feature, whatever the order of the output."""
    return {feature: upstream(*values[feature].shape, seed=100 * seed + i) for i, feature in enumerate(sorted(values))}


def pulled(out: Any, seed: int) -> Values:
    """The output of a forward, after its backward."""
    values = values_of(out)
    gradients = gradients_for(values, seed)
    torch.stack([(values[feature] * gradients[feature]).sum() for feature in values]).sum().backward()
    return {feature: value.detach() for feature, value in values.items()}


def same(a: Any, b: Any) -> bool:
    """Equal keys, and bit for bit equal tensors behind them."""
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


class Model(nn.Module):
    """A collection and a dense layer over what it looks up, as a recommender has them."""

    def __init__(self, tables: tuple[TableSpec, ...] = TABLES, device: torch.device = CPU) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(tables=collection(tables).embedding_bag_configs(), device=device)
        self.dense = nn.Linear(sum(t.dim * len(t.features) for t in tables), 1, device=device)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        values = values_of(self.bags(features))
        return self.dense(torch.cat([values[feature] for feature in sorted(values)], dim=1))


def trained(model: nn.Module, rank: int, tables: tuple[TableSpec, ...] = TABLES, steps: int = 2, seed: int = 0) -> Values:
    """The outputs of some steps, and the table shards after them."""
    dense = [parameter for name, parameter in model.named_parameters() if "dense" in name]
    optimizer = torch.optim.SGD(dense, lr=0.1)
    results = {}
    for i in range(steps):
        optimizer.zero_grad()
        out = model(batch(tables, SIZE, seed=10 * (seed + i) + rank).to(dense[0].device))
        out.sum().backward()
        optimizer.step()
        results[f"output {i}"] = out.detach()
    return {**results, **{str(key): weight for key, weight in shards_of(model).items()}}


def pieces_of(tensor: Any) -> list[tuple[Any, torch.Tensor]]:
    """This rank's shards of a tensor of a state dict, ``(first row and column, values)``."""
    if isinstance(tensor, DTensor):
        local = tensor.to_local()
        # Without a shard there is an offset all the same.
        return list(zip(local.local_offsets(), local.local_shards(), strict=False))
    if isinstance(tensor, ShardedTensor):
        return [(shard.metadata.shard_offsets, shard.tensor) for shard in tensor.local_shards()]
    return []


def load_pieces(sharded: nn.Module, weights: Values) -> None:
    """Copy whole tables into the shards, whatever kind of state dict shows them."""
    for key, tensor in sharded.state_dict().items():
        for (row, column), piece in pieces_of(tensor):
            piece.copy_(weights[key.split(".")[-2]][row : row + piece.shape[0], column : column + piece.shape[1]])


def shards_of(model: nn.Module) -> dict[tuple[str, int, int], torch.Tensor]:
    """This rank's shards of the tables as ``{(table, first row, first column): copy}``."""
    return {
        (key.split(".")[-2], *offsets): piece.detach().clone()
        for key, tensor in model.state_dict().items()
        for offsets, piece in pieces_of(tensor)
    }


def composable(rank: int, world: int, policy: Policy) -> dict[str, Any]:
    """`shard` and `shard_modules`, with a plan and, of one rank's collections, with a planner."""
    fresh_groups()
    plan = placed(TABLES, "mixed_sharded", world)
    answers: dict[str, Any] = {}
    for way in ("shard", "shard_modules"):
        results, kinds = [], []
        for each in (policy, None):
            torch.manual_seed(rank)
            model = Model()
            sharders = {sharder.module_type: sharder for sharder in sharders_of(each)}
            modules = EmbeddingModuleShardingPlan(copy.deepcopy(plan))
            if way == "shard":
                model.bags = shard(model.bags, modules, device=CPU, sharder=sharders[EmbeddingBagCollection])
            else:
                whole = ShardingPlan({"bags": modules})
                model = shard_modules(model, device=CPU, plan=whole, sharders=list(sharders.values()), init_params=True)
            load_full(model.bags, whole_weights())
            results.append(trained(model, rank))
            kinds.append(type(model.bags).__name__)
        answers[way] = {"kinds": kinds, "equal": same(*results), "shards": sum("output" not in key for key in results[0])}
    return answers


def materialised(rank: int, world: int, policy: Policy) -> dict[str, Any]:
    """A model made on the meta device: `DistributedModelParallel` gives it memory and values, and it trains."""
    fresh_groups()
    plan = placed(TABLES, "mixed_sharded", world)
    results, kinds, devices = [], [], set()
    for each in (policy, None):
        torch.manual_seed(rank)
        model = Model(device=torch.device("meta"))
        modules = ShardingPlan({"bags": EmbeddingModuleShardingPlan(copy.deepcopy(plan))})
        sharded = DistributedModelParallel(
            model, device=CPU, plan=modules, sharders=sharders_of(each), init_data_parallel=False, init_parameters=False
        )
        sharded.module.apply(give_values)
        sharded.init_data_parallel()
        kinds.append(type(sharded.module.bags).__name__)
        devices |= {str(tensor.device) for tensor in shards_of(sharded).values()}
        results.append(trained(sharded, rank))
    return {
        "kinds": kinds,
        "devices": devices,
        "equal": same(*results),
        "finite": all(v.isfinite().all() for v in results[0].values()),
    }


@torch.no_grad()
def give_values(module: nn.Module) -> None:
    """As a job does it: memory for what is still on the meta device, then its initial values."""
    if isinstance(module, nn.Linear):
        module.to_empty(device=CPU).reset_parameters()


def meta_sharded(rank: int, world: int, kind: str) -> dict[str, Any]:
    """Sharded on the meta device, where nothing is exchanged: to look at, as a checkpoint tool does."""
    plan, env = placed(TABLES, kind, world), world_env()
    tables = tuple(replace(t, pooling=PoolingType.SUM) for t in TABLES)  # means over grid tables are refused
    sizes, dists = [], []
    for each in (Policy(), None):
        sharder = {sharder.module_type: sharder for sharder in sharders_of(each)}[EmbeddingBagCollection]
        bags = Model(tables, device=torch.device("meta")).bags
        sharded = sharder.shard(bags, copy.deepcopy(plan), env, torch.device("meta"))
        sizes.append({key: tuple(tensor.size()) for key, tensor in sharded.state_dict().items()})
        dists.append({type(output_dist).__name__ for output_dist in sharded._output_dists})
    return {"sizes": sizes, "dists": dists}


Scene = tuple[Callable[[], nn.Module], tuple[TableSpec, ...], Any]


def scene(kind: str, world: int) -> Scene:
    """How to make a collection, its tables and a plan: of sequences if the kind says so, else of bags."""
    if kind == "sequences":
        return sequence_collection, SEQUENCES, sequence_plan(SEQUENCES, "row_wise", world)
    return collection, TABLES, placed(TABLES, kind, world)


def strided(world: int, rank: int, plan: Any) -> ShardingEnv2D:
    """Two groups of every other rank share the tables out, each over its own; ``plan`` becomes that of the rank's group."""
    fresh_groups()
    size, step = world // 2, 2
    mesh = DeviceMesh("cpu", [list(range(group, world, step)) for group in range(step)], mesh_dim_names=("replicate", "shard"))
    for sharding in plan.values():  # as `DMPCollection` does it
        sharding.ranks = [owner * step + rank % step for owner in sharding.ranks]
        for piece in sharding.sharding_spec.shards:
            piece.placement = torch.distributed._remote_device(f"rank:{piece.placement.rank() * step + rank % step}/cpu")
    groups = [mesh.get_group(mesh_dim=name) for name in ("shard", "replicate")]
    return ShardingEnv2D(*groups, dist.group.WORLD, mesh, node_group_size=size)


def two_dimensional(rank: int, world: int, kind: str, policy: Policy) -> dict[str, Any]:
    """Two steps of ours and of TorchRec's own."""
    make, tables, plan = scene(kind, world // 2)
    return dtensors_equal(rank, world, make, tables, plan, strided(world, rank, plan), policy)


def with_dtensors(rank: int, world: int, kind: str) -> dict[str, Any]:
    """The same, over all ranks, with state dicts of DTensors."""
    fresh_groups()
    env = ShardingEnv(world, rank, dist.group.WORLD, output_dtensor=True)
    return dtensors_equal(rank, world, *scene(kind, world), env, Policy())


def dtensors_equal(
    rank: int, world: int, make: Any, tables: tuple[TableSpec, ...], plan: Any, env: ShardingEnv, policy: Policy
) -> dict[str, Any]:
    runs = []
    weights = {key.split(".")[-2]: weight for key, weight in make(tables).state_dict().items()}
    for each in (policy, None):
        sharded = sharded_by(each, make(tables), plan, env)
        load_pieces(sharded, weights)
        with measure_traffic(sharded) if each is not None else nullcontext() as meter:
            seeds = [10 * i + rank for i in range(2)]
            outputs = [pulled(sharded(batch(tables, SIZE, seed=seed)), seed=seed) for seed in seeds]
        runs.append((outputs, shards_of(sharded), described(sharded), None if meter is None else meter.gather()))
    (got, shards, kinds, sent), (want, native_shards, native_kinds, _) = runs
    return {
        "outputs": [same(a, b) for a, b in zip(got, want, strict=True)],
        "shards": bool(kinds) and same(shards, native_shards),
        "kinds": kinds == native_kinds,
        "DTensors": all(kind == "DTensor" for kind, *_ in kinds.values()),
        "error": max(float((got[0][f] - value).norm() / value.norm()) for f, value in want[0].items() if value.numel()),
        "bytes": {way: sent.matrix(world, include_self=True, direction=way) for way in ("forward", "backward")},
    }


def described(sharded: nn.Module) -> dict[str, tuple[Any, ...]]:
    """Of a state dict, what is not values."""
    return {
        key: (type(tensor).__name__, str(tensor.placements), tensor.size(), str(tensor.device_mesh))
        for key, tensor in sharded.state_dict().items()
    }


def evaluated(rank: int, world: int, kind: str) -> dict[str, Any]:
    """One batch in every mode that makes no gradients, and in training, all from the same weights; and what a tracer sees."""
    fresh_groups()
    make, tables, plan = scene(kind, world)
    features = batch(tables, SIZE, seed=rank)
    sharded = sharded_by(Policy("int8", "int8"), make(tables), plan, world_env())
    outputs = [copied(values_of(sharded(features)))]
    sharded.eval()
    with torch.no_grad():
        outputs.append(copied(values_of(sharded(features))))
    # FBGEMM's lookup has no kernel for inference mode on CPU, so that is left for a moment.
    context = sharded.create_context()
    with torch.inference_mode():
        arrived = sharded.input_dist(context, features).wait().wait()
    with torch.no_grad():
        looked_up = sharded.compute(context, arrived)
    with torch.inference_mode():
        outputs.append(copied(values_of(sharded.output_dist(context, looked_up))))
    sharded.train()
    outputs.append(pulled(sharded(features), seed=rank))
    graph = Tracer().trace(Held(sharded))
    return {
        "equal": [same(outputs[0], other) for other in outputs],
        "called": [str(node.target) for node in graph.nodes if node.op == "call_module"],
    }


def copied(values: Values) -> Values:
    return {feature: value.detach().clone() for feature, value in values.items()}


class Held(nn.Module):
    """A model that does nothing but look up."""

    def __init__(self, collection: nn.Module) -> None:
        super().__init__()
        self.sparse = collection

    def forward(self, features: KeyedJaggedTensor) -> Any:
        return self.sparse(features)
