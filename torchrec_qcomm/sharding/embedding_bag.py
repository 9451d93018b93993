"""EmbeddingBagCollection: the sharded module and its sharder."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torchrec.distributed.embeddingbag import (
    EmbeddingBagCollectionSharder,
    ShardedEmbeddingBagCollection,
    replace_placement_with_meta_device,
)
from torchrec.distributed.sharding.cw_sharding import CwPooledEmbeddingSharding
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from torchrec_qcomm.sharding.collection import QCommCollection
from torchrec_qcomm.sharding.sharder import QCommSharder
from torchrec_qcomm.sharding.shardings import POOLED_SHARDINGS
from torchrec_qcomm.sharding.start_up import TableConfig, check_shards


class QCommShardedEmbeddingBagCollection(QCommCollection, ShardedEmbeddingBagCollection):
    """TorchRec's sharded collection with quantized output dists. All arguments but ``qcomm`` are TorchRec's."""

    quantized = POOLED_SHARDINGS

    @staticmethod
    def _table_configs(module: nn.Module) -> list[TableConfig]:
        return cast("EmbeddingBagCollection", module).embedding_bag_configs()

    def create_embedding_bag_sharding(
        self, sharding_infos: list[Any], env: ShardingEnv, device: torch.device | None = None, **kwargs: Any
    ) -> Any:
        """TorchRec's hook for making the sharding of one type (a class method there, always reached through ``self``)."""
        kind = sharding_infos[0].param_sharding.sharding_type
        if kind not in self.quantized:
            return super().create_embedding_bag_sharding(sharding_infos, env, device, **kwargs)
        if device is not None and device.type == "meta":
            replace_placement_with_meta_device(sharding_infos)
        if not issubclass(self.quantized[kind], CwPooledEmbeddingSharding):
            kwargs.pop("permute_embeddings", None)  # only columns get out of order; the others do not know the argument
        return self._quantized_sharding(kind, sharding_infos, env, device, **kwargs)

    def update_shards(self, changed_sharding_params: Any, env: ShardingEnv, device: torch.device | None) -> None:
        """TorchRec's own dynamic resharding; what cannot be exchanged is refused before anything moves."""
        check_shards(self._embedding_bag_configs, changed_sharding_params, device, self.quantized)
        super().update_shards(changed_sharding_params, env, device)


class QCommEmbeddingBagCollectionSharder(QCommSharder, EmbeddingBagCollectionSharder):
    """Shards EmbeddingBagCollections so that their exchange follows a policy.

    Arguments are those of `QCommSharder`, and TorchRec's ``fused_params`` and ``sharded_module_order_overwrite``.
    """

    @property
    def sharded_module_type(self) -> type[QCommShardedEmbeddingBagCollection]:
        """What `shard` returns."""
        return QCommShardedEmbeddingBagCollection

    def _module_arguments(self) -> dict[str, Any]:
        return {"sharded_module_order_overwrite": self._sharded_module_order_overwrite}
