"""EmbeddingBagCollection: the sharded module and its sharder."""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from typing import Any

import torch
from torchrec.distributed.embeddingbag import (
    EmbeddingBagCollectionSharder,
    ShardedEmbeddingBagCollection,
    replace_placement_with_meta_device,
)
from torchrec.distributed.sharding.cw_sharding import CwPooledEmbeddingSharding
from torchrec.distributed.types import ParameterSharding, ShardingEnv
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from torchrec_qcomm import codecs
from torchrec_qcomm.errors import PolicyError, QCommError, ShardingError, describe
from torchrec_qcomm.policy import Policy
from torchrec_qcomm.sharding.agreement import Agreement
from torchrec_qcomm.sharding.shardings import POOLED_SHARDINGS
from torchrec_qcomm.sharding.sites import CodecFactory
from torchrec_qcomm.sharding.start_up import SUPPORTED_TYPES, check_plan, common_record, site_codecs
from torchrec_qcomm.sharding.traffic import Meters

logger = logging.getLogger(__name__)


class QCommShardedEmbeddingBagCollection(ShardedEmbeddingBagCollection):
    """TorchRec's sharded collection with quantized output dists. All arguments but ``qcomm`` are TorchRec's."""

    def __init__(
        self,
        module: EmbeddingBagCollection,
        table_name_to_parameter_sharding: dict[str, ParameterSharding],
        env: ShardingEnv,
        *,
        qcomm: QCommEmbeddingBagCollectionSharder,
        module_fqn: str | None = None,
        **kwargs: Any,
    ) -> None:
        # TorchRec's constructor asks for the shardings, so what they need must stand before it runs. And it may run collectives
        # that ranks with other plans do not join, so the ranks agree before.
        configs = module.embedding_bag_configs()
        agreement = None if env.process_group is None else Agreement(env.process_group, module_fqn or "")
        try:
            sites = site_codecs(
                configs,
                table_name_to_parameter_sharding,
                qcomm.policy,
                qcomm.devices_per_host,
                qcomm.codec_factory,
                kwargs.get("device"),
            )
            record = common_record(sites, configs, table_name_to_parameter_sharding, kwargs)
        except QCommError as error:
            if agreement:
                agreement.fail(error)
            raise
        if agreement:
            agreement.require(record, qcomm.agreement_timeout)
        self._qcomm, self._qcomm_sites, self._qcomm_rules_checked = qcomm, sites, False
        self.qcomm_meters = Meters()
        super().__init__(module, table_name_to_parameter_sharding, env, module_fqn=module_fqn, **kwargs)

    def create_embedding_bag_sharding(
        self, sharding_infos: list[Any], env: ShardingEnv, device: torch.device | None = None, **kwargs: Any
    ) -> Any:
        """TorchRec's hook for making the sharding of one type (a class method there, always reached through ``self``)."""
        sharding_class = POOLED_SHARDINGS.get(sharding_infos[0].param_sharding.sharding_type)
        if sharding_class is None:
            return super().create_embedding_bag_sharding(sharding_infos, env, device, **kwargs)
        if device is not None and device.type == "meta":
            replace_placement_with_meta_device(sharding_infos)
        if not issubclass(sharding_class, CwPooledEmbeddingSharding):
            kwargs.pop("permute_embeddings", None)  # only columns get out of order; the others do not know the argument
        return sharding_class(sharding_infos, env, device, sites=self._qcomm_sites, meters=self.qcomm_meters, **kwargs)

    def input_dist(self, ctx: Any, features: Any) -> Any:
        """TorchRec's own; the first call also checks that every rule found a table, once all modules are sharded."""
        if not self._qcomm_rules_checked:
            self._qcomm.check_rules()
            self._qcomm_rules_checked = True
        return super().input_dist(ctx, features)

    def update_shards(self, changed_sharding_params: Any, env: ShardingEnv, device: torch.device | None) -> None:
        """TorchRec's own dynamic resharding; what cannot be exchanged is refused before anything moves."""
        check_plan(self._embedding_bag_configs, changed_sharding_params, device)
        super().update_shards(changed_sharding_params, env, device)


class QCommEmbeddingBagCollectionSharder(EmbeddingBagCollectionSharder):
    """Shards EmbeddingBagCollections so that their exchange follows a policy.

    Args:
        policy: which codec each table, direction and link gets. ``None``: everything moves as it is.
        devices_per_host: ranks on each host; by default ``LOCAL_WORLD_SIZE`` from the environment. Needed only by a policy
            that tells links apart.
        fused_params, sharded_module_order_overwrite: as in TorchRec.
        qcomm_codecs_registry: must be empty; TorchRec's own codecs would quantize a second time.
        codec_factory: makes a codec from its spec; by default this package's registry.
        agreement_timeout: how long ranks wait for each other at construction.

    Raises:
        ShardingError: a ``qcomm_codecs_registry`` is given, or another argument or ``LOCAL_WORLD_SIZE`` makes no sense.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        devices_per_host: int | None = None,
        fused_params: dict[str, Any] | None = None,
        qcomm_codecs_registry: dict[str, Any] | None = None,
        sharded_module_order_overwrite: list[str] | None = None,
        codec_factory: CodecFactory = codecs.get,
        agreement_timeout: timedelta = timedelta(minutes=5),
    ) -> None:
        if qcomm_codecs_registry:
            raise ShardingError(
                describe(
                    "qcomm_codecs_registry",
                    "values would be quantized twice",
                    got=sorted(qcomm_codecs_registry),
                    allowed="none",
                    todo="Say the precision in the policy instead.",
                )
            )
        if policy is not None and not isinstance(policy, Policy):
            todo = "get_sharders takes a config or the path of one."
            raise ShardingError(describe("policy", "not a policy", got=policy, allowed="a Policy, or None", todo=todo))
        if not isinstance(agreement_timeout, timedelta):
            raise ShardingError(describe("agreement_timeout", "not a time", got=agreement_timeout, allowed="a timedelta"))
        if devices_per_host is None:
            devices_per_host = _local_world_size()
        elif isinstance(devices_per_host, bool) or not isinstance(devices_per_host, int) or devices_per_host < 1:
            raise ShardingError(
                describe("devices_per_host", "not a number of ranks", got=devices_per_host, allowed="1 or more")
            )
        super().__init__(fused_params=fused_params, sharded_module_order_overwrite=sharded_module_order_overwrite)
        self.policy = Policy() if policy is None else policy
        self.devices_per_host = devices_per_host
        self.codec_factory = codec_factory
        self.agreement_timeout = agreement_timeout
        self._tables: set[str] = set()

    def sharding_types(self, compute_device_type: str) -> list[str]:
        """TorchRec's types less those whose exchange is not replaced yet."""
        offered = super().sharding_types(compute_device_type)
        if withheld := [kind for kind in offered if kind not in SUPPORTED_TYPES]:
            logger.info("not offered to the planner, since not exchanged quantized yet: %s", ", ".join(withheld))
        return [kind for kind in offered if kind in SUPPORTED_TYPES]

    def shard(
        self,
        module: EmbeddingBagCollection,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> QCommShardedEmbeddingBagCollection:
        """As in TorchRec.

        Raises:
            ShardingError: a sharding type or a codec that cannot be exchanged.
            DisagreementError: ranks have another policy, plan or code version, or another sharder.
        """
        self._tables.update(config.name for config in module.embedding_bag_configs())
        return QCommShardedEmbeddingBagCollection(
            module,
            params,
            env,
            qcomm=self,
            fused_params=self.fused_params,
            device=device,
            module_fqn=module_fqn,
            sharded_module_order_overwrite=self._sharded_module_order_overwrite,
        )

    @property
    def sharded_module_type(self) -> type[QCommShardedEmbeddingBagCollection]:
        """What `shard` returns."""
        return QCommShardedEmbeddingBagCollection

    def check_rules(self) -> None:
        """Refuse rules whose glob matches none of the tables that this sharder has sharded.

        Raises:
            PolicyError: names every such rule.
        """
        try:
            self.policy.check_matched(self._tables)
        except PolicyError as error:
            raise PolicyError(
                f"{error}\nThe tables are those that this sharder has sharded. Others are exchanged by TorchRec, unquantized; "
                "collections that share a policy must share the sharder, or its rules allow_unmatched."
            ) from None


def _local_world_size() -> int | None:
    text = os.environ.get("LOCAL_WORLD_SIZE")
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        raise ShardingError(
            describe("LOCAL_WORLD_SIZE in the environment", "not a number of ranks", got=text, allowed="1 or more")
        )
    return int(text)
