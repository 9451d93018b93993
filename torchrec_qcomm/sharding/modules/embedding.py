"""EmbeddingCollection: the sharded module and its sharder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder, ShardedEmbeddingCollection
from torchrec.distributed.types import Awaitable, LazyAwaitable, ShardingEnv
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from torchrec_qcomm.sharding.modules.collection import QCommCollection
from torchrec_qcomm.sharding.modules.sharder import QCommSharder
from torchrec_qcomm.sharding.plan import TableConfig
from torchrec_qcomm.sharding.shardings import SEQUENCE_SHARDINGS


class QCommShardedEmbeddingCollection(QCommCollection, ShardedEmbeddingCollection):
    """TorchRec's sharded collection with quantized output dists. All arguments but ``qcomm`` are TorchRec's."""

    quantized = SEQUENCE_SHARDINGS

    @staticmethod
    def _table_configs(module: nn.Module) -> list[TableConfig]:
        return cast("EmbeddingCollection", module).embedding_configs()

    def create_embedding_sharding(
        self,
        sharding_type: str,
        sharding_infos: list[Any],
        env: ShardingEnv,
        device: torch.device | None = None,
        **kwargs: Any,
    ) -> Any:
        """TorchRec's hook for making the sharding of one type (a class method there, always reached through ``self``)."""
        sharding_class = self.quantized.get(sharding_type)
        if sharding_class is None:
            return super().create_embedding_sharding(sharding_type, sharding_infos, env, device, **kwargs)
        return self._quantized_sharding(sharding_class, sharding_infos, env, device, **kwargs)

    @torch.compiler.disable(recursive=False)
    def output_dist(self, ctx: Any, output: Any) -> LazyAwaitable[dict[str, JaggedTensor]]:
        """TorchRec's own, but for a rank whose batch is empty."""
        return self._or_empty(ctx, super().output_dist(ctx, output))

    @torch.compiler.disable(recursive=False)
    def compute_and_output_dist(self, ctx: Any, input: Any) -> LazyAwaitable[dict[str, JaggedTensor]]:
        """TorchRec's own, but for a rank whose batch is empty."""
        return self._or_empty(ctx, super().compute_and_output_dist(ctx, input))

    @torch.compiler.disable(recursive=False)
    def _or_empty(self, ctx: Any, result: Any) -> LazyAwaitable[dict[str, JaggedTensor]]:
        batches = [context.features_before_input_dist for context in ctx.sharding_contexts]
        if any(features.stride() for features in batches):
            return result
        names = self._embedding_names_per_sharding
        return _EmptyBatch(result._awaitables_per_sharding, names, batches, self._need_indices)


class _EmptyBatch(LazyAwaitable[dict[str, JaggedTensor]]):
    """The result on a rank without samples, where TorchRec's own awaitable fails to reshape its lengths.

    It has no vectors, but waits for the exchange, which brings other ranks their gradients in backward.
    """

    def __init__(
        self,
        exchanges: Sequence[Awaitable[torch.Tensor]],
        names: Sequence[Sequence[str]],
        batches: Sequence[KeyedJaggedTensor],
        need_indices: bool,
    ) -> None:
        super().__init__()
        self._exchanges, self._names, self._batches, self._need_indices = exchanges, names, batches, need_indices

    def _wait_impl(self) -> dict[str, JaggedTensor]:
        found = {}
        for exchange, names, features in zip(self._exchanges, self._names, self._batches, strict=True):
            vectors = exchange.wait()
            for name, shards in Counter(names).items():  # a column shard has a part of each vector
                values = vectors if shards == 1 else torch.cat([vectors] * shards, dim=1)
                weights = features.values() if self._need_indices else None
                found[name] = JaggedTensor(values=values, lengths=features.lengths(), weights=weights)
        return found


class QCommEmbeddingCollectionSharder(QCommSharder, EmbeddingCollectionSharder):
    """Shards EmbeddingCollections so that their exchange follows a policy.

    Arguments are those of `QCommSharder`, and TorchRec's ``fused_params`` and ``use_index_dedup``.
    """

    @property
    def sharded_module_type(self) -> type[QCommShardedEmbeddingCollection]:
        """What `shard` returns."""
        return QCommShardedEmbeddingCollection

    def _module_arguments(self) -> dict[str, Any]:
        return {"use_index_dedup": self._use_index_dedup}
