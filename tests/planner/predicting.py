"""Sharded models whose traffic is measured on real ranks, and the jobs that say what it should have been."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.embedding_sharding import EmbeddingShardingContext
from torchrec.distributed.model_parallel import DMPCollection
from torchrec.distributed.types import DMPCollectionContext, ShardingPlan
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.sharding.scenarios.entry_points import strided, world_env
from tests.sharding.scenarios.hops import hop
from tests.sharding.scenarios.pooled_collections import CPU
from tests.sharding.scenarios.sequences import SEQUENCES, flat, sequence_collection, sequence_plan
from tests.sharding.scenarios.tables import LOCAL, SGD, TableSpec, batch, collection, placed
from tests.sharding.scenarios.variable_batch import ragged
from torchrec_qcomm import codecs
from torchrec_qcomm.collectives import Observers
from torchrec_qcomm.planner.job import Job, Machines, Replicas
from torchrec_qcomm.planner.search.topology import build_topology
from torchrec_qcomm.planner.sources.options import PlannerInputs, job_from_options, options_of
from torchrec_qcomm.policy import Link, Policy, Rule, Table
from torchrec_qcomm.sharding import (
    QCommEmbeddingBagCollectionSharder,
    QCommEmbeddingCollectionSharder,
    measure_traffic,
)
from torchrec_qcomm.sharding.dists.pooled import QCommPooledEmbeddingDist
from torchrec_qcomm.sharding.precision import TableCodecs
from torchrec_qcomm.sharding.traffic import TrafficMeter
from torchrec_qcomm.wire import Column, PooledLayout, ReduceLayout, Traffic

WORLD = 4

BAGS = (
    TableSpec("t0", 40, 64, ("f0", "f1")),
    TableSpec("t1", 30, 20, ("f2",)),
    TableSpec("t2", 50, 48, ("f3",)),
    TableSpec("t3", 21, 32, ("f4", "f5", "f6")),
    TableSpec("t4", 33, 28, ("f7",)),
    TableSpec("t5", 17, 36, ("f8",)),
)
"""Tables of sums; two have several features, and no number of rows or dims fits all ranks evenly."""

EVERY_KIND = ("table_wise", "column_wise", "table_column_wise", "row_wise", "table_row_wise", "grid_shard")

PER_LINK = Policy(
    "int8",
    "fp8_e5m2",
    rules=(
        Rule(tables="t1", forward="int4"),
        Rule(tables="t[03]", link=Link.INTRA_HOST, forward="bf16", backward="fp16"),
        Rule(tables="t[24]", link=Link.SELF, forward="none"),
        Rule(tables="t5", forward="none", backward="none", allow_unmatched=True),
    ),
)
"""Other codecs for each table, and for some of them by link."""

RANGES = Policy(
    {"codec": "int8", "range": {"ema": 0.9}},
    {"codec": "int4", "range": {"static": [-1, 1]}},
    rules=(Rule(link=Link.INTER_HOST, tables="t[024]", forward={"codec": "int4", "range": {"ema": 0}}, backward="int8"),),
)
"""Rows that share a range: it travels once for each table and pair of ranks, in each hop."""


@dataclass(frozen=True)
class Scene:
    """A model with a collection of bags, of sequences, or both.

    Attributes:
        bags: a kind of sharding for each of `BAGS`, round and round.
        sequences: likewise for `SEQUENCES`.
        sizes: samples of each rank.
        variable: features have batch sizes of their own.
        group: ranks of a sharding group of every other rank, with 2D parallelism.
    """

    bags: tuple[str, ...] = ()
    sequences: tuple[str, ...] = ()
    policy: Policy = field(default=PER_LINK)
    sizes: tuple[int, ...] = (8, 7, 5, 1)
    variable: bool = False
    weighted: bool = False
    hierarchical: bool = False
    group: int | None = None

    @property
    def tables(self) -> dict[str, tuple[TableSpec, ...]]:
        return {"bags": BAGS if self.bags else (), "sequences": SEQUENCES if self.sequences else ()}

    def model(self) -> nn.ModuleDict:
        made: dict[str, nn.Module] = {}
        if self.bags:
            made["bags"] = collection(BAGS, weighted=self.weighted)
        if self.sequences:
            made["sequences"] = sequence_collection()
        return nn.ModuleDict(made)

    def plan(self) -> dict[str, Any]:
        """By path; of ranks of a group."""
        world, plans = self.group or WORLD, {}
        for path, kinds, tables, make in (
            ("bags", self.bags, BAGS, placed),
            ("sequences", self.sequences, SEQUENCES, sequence_plan),
        ):
            if kinds:
                # By threes, so that a rank is left without a whole table.
                plans[path] = {
                    t.name: make(tables[i // 3 * 3 :][:3], kinds[i % len(kinds)], world)[t.name] for i, t in enumerate(tables)
                }
        return plans

    def batches(self, rank: int) -> dict[str, KeyedJaggedTensor]:
        """A rank's batch, for each collection."""
        return {
            path: self._batch(tables, rank, path == "bags" and self.weighted) for path, tables in self.tables.items() if tables
        }

    def _batch(self, tables: Sequence[TableSpec], rank: int, weighted: bool) -> KeyedJaggedTensor:
        if not self.variable:
            return batch(tables, self.sizes[rank], seed=rank, weighted=weighted)
        generator = torch.Generator().manual_seed(rank)
        features = sum(len(t.features) for t in tables)
        rows = torch.randint(1, self.sizes[rank] + 1, (features,), generator=generator).tolist()
        return ragged(tables, (self.sizes[rank], tuple(rows)), seed=rank, weighted=weighted)

    def job(self) -> Job:
        """What the planner makes of the plan."""
        return self.job_of(self.plan())

    def job_of(self, plan: dict[str, Any]) -> Job:
        """Likewise, of another plan."""
        inputs = PlannerInputs(build_topology(WORLD, LOCAL, "cpu"), max(self.sizes), tuple(self._sharders().values()))
        return job_from_options(
            options_of(ShardingPlan(plan), self.model(), inputs),
            inputs,
            machines=Machines(WORLD, LOCAL),
            replicas=Replicas(self.group, node_group_size=self.group) if self.group else None,
        )

    def _sharders(self) -> dict[str, Any]:
        """For each collection."""
        bags = QCommEmbeddingBagCollectionSharder(
            self.policy, hierarchical_row_wise=self.hierarchical, fused_params=SGD, devices_per_host=LOCAL
        )
        return {
            "bags": bags,
            "sequences": QCommEmbeddingCollectionSharder(self.policy, fused_params=SGD, devices_per_host=LOCAL),
        }

    def sharded(self, rank: int) -> nn.ModuleDict:
        """On a rank."""
        model, plan = self.model(), copy.deepcopy(self.plan())
        flat = {(path, name): sharding for path, shardings in plan.items() for name, sharding in shardings.items()}
        env = strided(WORLD, rank, flat) if self.group else world_env()
        sharders = self._sharders()
        return nn.ModuleDict(
            {path: sharders[path].shard(module, plan[path], env, CPU, module_fqn=path) for path, module in model.items()}
        )


class Spy:
    """Counts the bytes of the exchange of ids that a rank gives to ``all_to_all_single``, by the rank that they go to."""

    def __init__(self, world: int) -> None:
        self.nbytes = [0] * world

    def __enter__(self) -> Spy:
        self._real = dist.all_to_all_single
        dist.all_to_all_single = self._call
        return self

    def __exit__(self, *_: object) -> None:
        dist.all_to_all_single = self._real

    def _call(self, output: torch.Tensor, input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        # Quantized rows are uint8. Before ids go, their numbers do, equally many to each rank, so that no splits are given.
        if input.dtype != torch.uint8 and kwargs.get("input_split_sizes") is not None:
            assert input.dim() == 1
            peers = dist.get_process_group_ranks(kwargs["group"])
            for peer, size in zip(peers, kwargs["input_split_sizes"], strict=True):
                self.nbytes[peer] += size * input.element_size()
        return self._real(output, input, *args, **kwargs)


def measured(rank: int, world: int, scene: Scene) -> tuple[Traffic, list[int]]:
    """One step: what all ranks together sent, and the bytes of ids that this one sent to each."""
    model, batches = scene.sharded(rank), scene.batches(rank)
    for path in model:  # the first forward makes the input dists
        model[path](batches[path])
    with measure_traffic(model) as meter, Spy(world) as spy:
        for path, sharded in model.items():
            out = sharded(batches[path])
            if path == "bags":
                outputs = [out.values()]
            elif scene.variable:
                # TorchRec loses the gradient of such sequences behind the exchange, on CPU.
                outputs = [exchange.wait() for exchange in out._awaitables_per_sharding]
            else:
                outputs = [flat(out)]
            for values in outputs:
                values.backward(torch.ones_like(values))
    return meter.gather(), spy.nbytes


ODD = ((("a", 7), ("b", 1), ("a", 7)), (("c", 5),), (("d", 33), ("d", 3)))
"""Columns of three ranks, of dims that FBGEMM's lookups do not know."""


def odd_dims(rank: int, world: int, policy: Policy, sizes: tuple[int, ...], summed: bool) -> Traffic:
    """An exchange without lookups."""
    columns = [[Column(name, dim) for name, dim in (ODD[0] if summed else owned)] for owned in ODD]
    sites = TableCodecs(policy.resolve(Table(name, 10, 7) for name in "abcd"), 1, codecs.get)
    observers, meter = Observers(), TrafficMeter()
    observers.active.append(meter)
    layout = ReduceLayout if summed else PooledLayout
    exchange = QCommPooledEmbeddingDist(hop(dist.group.WORLD, columns, torch.float32, sites, observers, layout))
    lookup = torch.ones(sum(sizes), sum(column.dim for column in columns[rank]), requires_grad=True)
    out = exchange(lookup, EmbeddingShardingContext(batch_size_per_rank=list(sizes))).wait()
    out.backward(torch.ones_like(out))
    return meter.gather()


def reduced_in_steps(rank: int, world: int, scene: Scene) -> dict[str, int]:
    """Bytes of the tensors that a rank gives to all-reduces: of gradients in a step, and of weights between replicas."""
    model, batches = scene.sharded(rank), scene.batches(rank)
    gradients: list[int] = []

    def hook(_, bucket):  # without types, which DDP compares, and here would find as text
        gradients.append(bucket.buffer().nbytes)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    for lookup in (lookup for sharded in model.values() for lookup in sharded._lookups):
        if isinstance(lookup, nn.parallel.DistributedDataParallel):
            lookup.register_comm_hook(None, hook)
    for path, sharded in model.items():
        values = sharded(batches[path]).values() if path == "bags" else flat(sharded(batches[path]))
        values.backward(torch.ones_like(values))
    return {"gradients": sum(gradients), "weights": _given_by_sync(model)}


def _given_by_sync(model: nn.Module) -> int:
    """What `DMPCollection`, which wants a GPU, would give to the all-reduce of weights: its own code but the constructor."""
    weights: list[int] = []
    outer = DMPCollection.__new__(DMPCollection)
    nn.Module.__init__(outer)
    outer._dmp_wrapped_module = model
    outer._custom_all_reduce = lambda tensors: weights.extend(tensor.nbytes for tensor in tensors)
    outer._all_reduce_hook, outer._use_sharded_relay = None, False  # the first is looked at from 1.9 on
    context = DMPCollectionContext(None, ShardingPlan({}), 2, replica_pg=dist.group.WORLD)
    outer._ctxs = [context]
    outer._group_sharded_modules(outer._ctxs)
    outer._cache_sync_tensors(outer._ctxs)
    outer.sync(include_optimizer_state=False)
    return sum(weights)
