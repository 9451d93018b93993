"""EmbeddingBagCollection: the sharded module and its sharder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.embeddingbag import (
    EmbeddingBagCollectionSharder,
    ShardedEmbeddingBagCollection,
    replace_placement_with_meta_device,
)
from torchrec.distributed.sharding.cw_sharding import CwPooledEmbeddingSharding
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from torchrec_qcomm.errors import ShardingError, describe
from torchrec_qcomm.policy import Policy
from torchrec_qcomm.sharding.modules.collection import QCommCollection
from torchrec_qcomm.sharding.modules.options import SharderOptions
from torchrec_qcomm.sharding.modules.sharder import QCommSharder
from torchrec_qcomm.sharding.plan import TableConfig
from torchrec_qcomm.sharding.shardings import (
    POOLED_SHARDINGS,
    QCommHierarchicalRwPooledEmbeddingSharding,
    QCommRwPooledEmbeddingSharding,
)
from torchrec_qcomm.sharding.start_up.agreement import agree
from torchrec_qcomm.sharding.start_up.checks import check_moves, check_shards
from torchrec_qcomm.sharding.start_up.hosts import exchange_group, summing_ranks
from torchrec_qcomm.sharding.start_up.record import moves_record


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
        sharding_class: type | None = self.quantized.get(sharding_infos[0].param_sharding.sharding_type)
        if sharding_class is None:
            return super().create_embedding_bag_sharding(sharding_infos, env, device, **kwargs)
        on_meta = device is not None and device.type == "meta"  # where TorchRec has no groups of hosts
        if on_meta:
            replace_placement_with_meta_device(sharding_infos)
        if sharding_class is QCommRwPooledEmbeddingSharding and self._qcomm_summing_ranks > 1 and not on_meta:
            sharding_class, kwargs["summing_ranks"] = QCommHierarchicalRwPooledEmbeddingSharding, self._qcomm_summing_ranks
        if not issubclass(sharding_class, CwPooledEmbeddingSharding):
            kwargs.pop("permute_embeddings", None)  # only columns get out of order; the others do not know the argument
        return self._quantized_sharding(sharding_class, sharding_infos, env, device, **kwargs)

    def _own_record(self, qcomm: SharderOptions, env: ShardingEnv) -> dict[str, Any]:
        hierarchical = qcomm.hierarchical_row_wise
        self._qcomm_summing_ranks = summing_ranks(qcomm.devices_per_host, env) if hierarchical else 1
        return {"hierarchical_row_wise": hierarchical, "ranks of a host that sum first": self._qcomm_summing_ranks}

    def update_shards(self, changed_sharding_params: Any, env: ShardingEnv, device: torch.device | None) -> None:
        """TorchRec's own dynamic resharding, once all ranks have the same changes, and such as can be made.

        Raises:
            ShardingError: TorchRec cannot move the table so, or its exchange cannot be quantized then.
            DisagreementError: ranks have other changes.
        """
        group = exchange_group(self._env)

        def record() -> dict[str, Any]:
            check_shards(self._embedding_bag_configs, changed_sharding_params, device, self.quantized)
            check_moves(self.module_sharding_plan, changed_sharding_params)
            return moves_record(changed_sharding_params, None if group is None else dist.get_backend(group))

        agree(group, f"{self._module_fqn or ''} (resharding)", self._qcomm.agreement_timeout, record)
        super().update_shards(changed_sharding_params, env, device)


class QCommEmbeddingBagCollectionSharder(QCommSharder, EmbeddingBagCollectionSharder):
    """Shards EmbeddingBagCollections so that their exchange follows a policy.

    Args:
        policy: as for `QCommSharder`.
        hierarchical_row_wise: exchange row-wise tables in two hops: the ranks of a host sum first, then hosts exchange their
            sums, so that what crosses hosts is divided by the ranks of a host. Each hop quantizes, in the codecs of its link.
            With one host, or one rank on each host, it is the plain exchange, and that is logged. Needs ``devices_per_host``.
        arguments: those of `QCommSharder`, and TorchRec's ``fused_params`` and ``sharded_module_order_overwrite``.

    Raises:
        ShardingError: an argument makes no sense.
    """

    def __init__(self, policy: Policy | None = None, *, hierarchical_row_wise: bool = False, **arguments: Any) -> None:
        super().__init__(policy, **arguments)
        if not isinstance(hierarchical_row_wise, bool):
            raise ShardingError(
                describe("hierarchical_row_wise", "not a switch", got=hierarchical_row_wise, allowed=(False, True))
            )
        self.hierarchical_row_wise = hierarchical_row_wise

    @property
    def sharded_module_type(self) -> type[QCommShardedEmbeddingBagCollection]:
        """What `shard` returns."""
        return QCommShardedEmbeddingBagCollection

    def _options(self) -> SharderOptions:
        return replace(super()._options(), hierarchical_row_wise=self.hierarchical_row_wise)

    def _module_arguments(self) -> dict[str, Any]:
        return {"sharded_module_order_overwrite": self._sharded_module_order_overwrite}
