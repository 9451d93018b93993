"""A small DLRM, distributed by TorchRec's planner and wrapper as users do it, and its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed import comm
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embedding_types import ShardingType
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.types import ModuleSharder, ShardedModule
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from tests.sharding.scenarios.tables import TableSpec, batch, load_full
from torchrec_qcomm.policy import Policy
from torchrec_qcomm.sharding import QCommEmbeddingBagCollectionSharder, QCommEmbeddingCollectionSharder

BAGS = (
    TableSpec("t0", 40, 64, ("f0", "f1")),
    TableSpec("t1", 30, 20, ("f2",), PoolingType.MEAN),
    TableSpec("t2", 50, 48, ("f3",)),
    TableSpec("t3", 20, 32, ("f4",)),
)
SEQUENCES = (TableSpec("s0", 36, 24, ("g0", "g1")), TableSpec("s1", 44, 24, ("g2",)))
"""One dim: TorchRec refuses sequences of several, unless each table has a collection of its own."""

DENSE = 6
POSITIONS = 3
"""Ids of a feature at most; sequences are padded to that."""

Kinds = Mapping[str, str]
"""The sharding type of each table."""

_MIXED = {
    "mixed": ("row_wise", "table_wise", "column_wise", "data_parallel"),
    "mixed hosts": ("table_row_wise", "data_parallel", "table_column_wise", "row_wise"),
}
# TorchRec shards sequences in fewer ways, and its data-parallel ones fail on CPU.
_OF_SEQUENCES = {
    "data_parallel": ("table_wise", "table_wise"),
    "table_column_wise": ("column_wise", "table_wise"),
    "table_row_wise": ("table_wise", "row_wise"),
    "grid_shard": ("column_wise", "row_wise"),
    "mixed": ("table_wise", "row_wise"),
    "mixed hosts": ("row_wise", "column_wise"),
}


def plan_of(kind: str) -> Kinds:
    """All tables of one type, or of several: ``mixed``, and ``mixed hosts`` with one that looks at hosts.

    Tables of sequences have the nearest type that works for them.
    """
    bags = {t.name: _MIXED[kind][i] if kind in _MIXED else kind for i, t in enumerate(BAGS)}
    sequences = {t.name: _OF_SEQUENCES[kind][i] if kind in _OF_SEQUENCES else kind for i, t in enumerate(SEQUENCES)}
    return bags | sequences


@dataclass(frozen=True)
class Setting:
    """What a model is made of.

    Attributes:
        kinds: sharding type of each table.
        quantized: our sharders, else TorchRec's own.
        policy: of ours.
        fused: fused optimizer of the tables, and what else `fused_params` may say.
        collections: of ``bags`` and ``sequences``.
        data_type: of the tables.
        seed: of the first weights.
    """

    kinds: Kinds
    quantized: bool
    fused: Mapping[str, Any]
    policy: Policy = field(default_factory=Policy)
    collections: tuple[str, ...] = ("bags", "sequences")
    data_type: DataType = DataType.FP32
    seed: int = 0


@dataclass
class Batch(Pipelineable):
    """``dense [B, DENSE]``, the ids of either collection, ``labels [B]``."""

    dense: torch.Tensor
    bags: KeyedJaggedTensor
    sequences: KeyedJaggedTensor
    labels: torch.Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> Batch:
        moved = (part.to(device=device, non_blocking=non_blocking) for part in vars(self).values())
        return Batch(*moved)

    def record_stream(self, stream: Any) -> None:
        for part in vars(self).values():
            part.record_stream(stream)

    def pin_memory(self) -> Batch:
        return self


def make_batch(size: int, seed: int) -> Batch:
    """``size`` samples."""
    generator = torch.Generator().manual_seed(seed)
    return Batch(
        dense=torch.randn(size, DENSE, generator=generator),
        bags=batch(BAGS, size, seed=seed, max_ids=POSITIONS),
        sequences=batch(SEQUENCES, size, seed=seed + 1, max_ids=POSITIONS),
        labels=torch.randint(0, 2, (size,), generator=generator).float(),
    )


class Dlrm(nn.Module):
    """Dense arch, pooled and sequence embeddings, and an over arch on all of them. Returns ``(loss, logits)``."""

    def __init__(self, setting: Setting, device: torch.device) -> None:
        super().__init__()
        self.dense_arch = nn.Sequential(nn.Linear(DENSE, 8), nn.ReLU())
        width = 8
        self.pooled_features: list[str] = []
        self.sequence_features: list[str] = []
        if "bags" in setting.collections:
            # TorchRec returns sums where means are asked for with grid sharding.
            sums_only = ShardingType.GRID_SHARD.value in setting.kinds.values()
            self.ebc = EmbeddingBagCollection(
                tables=[
                    EmbeddingBagConfig(
                        name=t.name,
                        num_embeddings=t.rows,
                        embedding_dim=t.dim,
                        feature_names=list(t.features),
                        pooling=PoolingType.SUM if sums_only else t.pooling,
                        data_type=setting.data_type,
                    )
                    for t in BAGS
                ],
                device=device,
            )
            self.pooled_features = [feature for t in BAGS for feature in t.features]
            width += sum(t.dim * len(t.features) for t in BAGS)
        if "sequences" in setting.collections:
            self.ec = EmbeddingCollection(
                tables=[
                    EmbeddingConfig(
                        name=t.name,
                        num_embeddings=t.rows,
                        embedding_dim=t.dim,
                        feature_names=list(t.features),
                        data_type=setting.data_type,
                    )
                    for t in SEQUENCES
                ],
                device=device,
            )
            self.sequence_features = [feature for t in SEQUENCES for feature in t.features]
            width += sum(t.dim * len(t.features) * POSITIONS for t in SEQUENCES)
        self.over_arch = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 1))

    def embed(self, batch: Batch) -> torch.Tensor:
        """The embeddings of all features ``[B, sum of their widths]``; here the exchange is waited for."""
        parts = []
        if self.pooled_features:
            keyed = self.ebc(batch.bags)
            parts += [keyed[feature] for feature in self.pooled_features]
        if self.sequence_features:
            jagged = self.ec(batch.sequences)
            for feature in self.sequence_features:
                parts.append(torch.flatten(jagged[feature].to_padded_dense(POSITIONS), 1))
        return torch.cat(parts, dim=1)

    def dense_part(self, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """The logits ``[B]``."""
        return self.over_arch(torch.cat([self.dense_arch(dense), embedded.float()], dim=1)).squeeze(1)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.dense_part(batch.dense, self.embed(batch))
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels), logits


def unsharded(setting: Setting) -> Dlrm:
    """The whole model with first weights that depend on the seed alone."""
    model = Dlrm(setting, torch.device("cpu"))
    generator = torch.Generator().manual_seed(setting.seed)
    for parameter in model.parameters():
        scale = 0.5 if parameter.dim() == 1 or parameter.shape[0] < 20 else 1.0
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return model


class _AllTypes:
    """Offers the planner on CPU what TorchRec offers on GPUs."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return super().sharding_types("cuda")  # type: ignore[misc]


class NativeBags(_AllTypes, EmbeddingBagCollectionSharder):
    """TorchRec's own."""


class OurBags(_AllTypes, QCommEmbeddingBagCollectionSharder):
    """Ours."""


def sharders(setting: Setting) -> list[ModuleSharder[Any]]:
    """Of all collections."""
    fused = dict(setting.fused)
    if setting.quantized:
        tables: set[str] = set()
        return [
            OurBags(setting.policy, fused_params=fused, sharded_tables=tables),
            QCommEmbeddingCollectionSharder(setting.policy, fused_params=fused, sharded_tables=tables),
        ]
    return [NativeBags(fused_params=fused), EmbeddingCollectionSharder(fused_params=fused)]


def distributed(setting: Setting, *, meta: bool = False) -> DistributedModelParallel:
    """Plan, shard, and give every rank its shards of the first weights; ``meta``: the tables have no weights before."""
    # TorchRec keeps the groups of the first host layout that a process saw; each task has groups of its own.
    comm._INTRA_PG = comm._CROSS_PG = None
    model, world = unsharded(setting), dist.get_world_size()
    if meta:
        without = Dlrm(setting, torch.device("meta"))
        without.load_state_dict({n: w for n, w in model.state_dict().items() if "arch" in n}, strict=False, assign=True)
    weights = {name.split(".")[-2]: p.detach().clone() for name, p in model.named_parameters()}
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=world, local_world_size=comm.get_local_size(world), compute_device="cpu"),
        constraints={
            t.name: ParameterConstraints(
                sharding_types=[setting.kinds[t.name]],
                min_partition=-(-t.dim // 8) * 4,
                pooling_factors=[1.5] * len(t.features),
            )
            for t in (*BAGS, *SEQUENCES)
            if t.name in setting.kinds
        },
    )
    if meta:
        model = without
    using = sharders(setting)
    plan = planner.collective_plan(model, using, dist.group.WORLD)
    # Whatever was asked for is what is tested.
    for module in plan.plan.values():
        for name, sharding in module.items():
            assert sharding.sharding_type == setting.kinds[name], (name, sharding.sharding_type)
    wrapped = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=using)
    for module in sharded_modules(wrapped):
        load_full(module, weights)
    return wrapped


def sharded_modules(model: nn.Module) -> Iterator[ShardedModule]:
    """The sharded collections of a model."""
    return (module for module in model.modules() if isinstance(module, ShardedModule))


MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """For the dense part."""
    return torch.optim.Adam(parameters, lr=0.01)


def optimizer_of(model: DistributedModelParallel, make: MakeOptimizer = adam) -> CombinedOptimizer:
    """The fused optimizers of the tables, and ``make`` for all else; its state initialised, so that it can be loaded."""
    dense = KeyedOptimizerWrapper(dict(in_backward_optimizer_filter(model.named_parameters())), make)
    dense.init_state()
    return CombinedOptimizer([model.fused_optimizer, dense])


def train(model: DistributedModelParallel, optimizer: CombinedOptimizer, batches: Sequence[Batch]) -> list[torch.Tensor]:
    """One step a batch; the logits of each."""
    logits = []
    for one in batches:
        optimizer.zero_grad()
        loss, out = model(one)
        loss.backward()
        optimizer.step()
        logits.append(out.detach())
    return logits
