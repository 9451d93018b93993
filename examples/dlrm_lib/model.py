"""TorchRec's DLRM for a data set, with weights that depend only on the seed, and not on ranks, sharding or codec."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, PoolingType
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.types import ShardedTensor
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.optim.keyed import KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from dlrm_lib.data import ClickData, TableSpec


@dataclass(frozen=True, slots=True)
class Optimizers:
    """How embeddings and the dense part are trained.

    Attributes:
        name: ``"adagrad"``: row-wise Adagrad for embeddings, Adam for the dense part; ``"sgd"``: SGD for both.
        embedding_lr: learning rate of the embeddings.
        dense_lr: learning rate of the dense part.
    """

    name: str = "adagrad"
    embedding_lr: float = 0.05
    dense_lr: float = 1e-3


def build_model(data: ClickData, *, dim: int = 32, seed: int = 0) -> DLRMTrain:
    """DLRM with a bottom MLP n-64-dim and a top MLP 128-64-1. The tables are on the meta device until they are sharded."""
    torch.manual_seed(seed)
    tables = [
        EmbeddingBagConfig(
            name=table.name,
            feature_names=[table.feature],
            num_embeddings=table.rows,
            embedding_dim=dim,
            pooling=PoolingType(table.pooling.upper()),
        )
        for table in data.tables
    ]
    return DLRMTrain(
        DLRM(
            embedding_bag_collection=EmbeddingBagCollection(tables=tables, device=torch.device("meta")),
            dense_in_features=len(data.dense_names),
            dense_arch_layer_sizes=[64, dim],
            over_arch_layer_sizes=[128, 64, 1],
        )
    )


def train_embeddings_in_backward(model: nn.Module, how: Optimizers) -> None:
    """Let the embeddings' optimizer run inside their backward (fused); call it before the model is sharded."""
    optimizer = RowWiseAdagrad if how.name == "adagrad" else torch.optim.SGD
    embeddings = [p for m in model.modules() if isinstance(m, EmbeddingBagCollection) for p in m.parameters()]
    apply_optimizer_in_backward(optimizer, embeddings, {"lr": how.embedding_lr})


def dense_optimizer(model: DistributedModelParallel, how: Optimizers) -> torch.optim.Optimizer:
    """The optimizer of all parameters without one in backward: those of the MLPs and of data-parallel tables."""
    optimizer = torch.optim.Adam if how.name == "adagrad" else torch.optim.SGD
    rest = dict(in_backward_optimizer_filter(model.named_parameters()))
    return KeyedOptimizerWrapper(rest, lambda params: optimizer(params, lr=how.dense_lr))


@torch.no_grad()
def set_initial_weights(model: DistributedModelParallel, tables: Sequence[TableSpec], seed: int) -> None:
    """Fill the tables with ``U(-1/sqrt(rows), 1/sqrt(rows))``.

    TorchRec lets each rank draw the shards it owns, so the weights of a table would depend on the plan. Here every rank draws
    the whole table from a stream of its own, and keeps the part that it owns.
    """
    state = {key.split(".")[-2]: value for key, value in model.state_dict().items() if ".embedding_bags." in key}
    for table in tables:
        owned = state[table.name]
        stream = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{table.name}".encode()))
        bound = 1 / math.sqrt(table.rows)
        whole = torch.empty(tuple(owned.size())).uniform_(-bound, bound, generator=stream)
        if not isinstance(owned, ShardedTensor):  # data-parallel: every rank has the whole table
            owned.copy_(whole)
            continue
        for shard in owned.local_shards():
            part = whole
            for axis, (offset, size) in enumerate(zip(shard.metadata.shard_offsets, shard.metadata.shard_sizes, strict=True)):
                part = part.narrow(axis, offset, size)
            shard.tensor.copy_(part)
