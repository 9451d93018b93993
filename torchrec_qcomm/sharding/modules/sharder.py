"""What sharders of this package have in common: the policy, and what is needed to apply it."""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from typing import Any

import torch
from torchrec.distributed.types import ParameterSharding, ShardingEnv, ShardingType

from torchrec_qcomm import codecs
from torchrec_qcomm.errors import PolicyError, ShardingError, describe
from torchrec_qcomm.policy import Policy
from torchrec_qcomm.sharding.modules.collection import QCommCollection
from torchrec_qcomm.sharding.modules.options import SharderOptions
from torchrec_qcomm.sharding.precision import CodecFactory
from torchrec_qcomm.sharding.versions import warn_if_untested

logger = logging.getLogger(__name__)


class QCommSharder:
    """Mixed into a sharder of TorchRec.

    Args:
        policy: which codec each table, direction and link gets. ``None``: everything moves as it is.
        devices_per_host: ranks on each host; by default ``LOCAL_WORLD_SIZE`` from the environment. Needed only by a policy
            that tells links apart.
        codec_factory: makes a codec from its spec; by default this package's registry.
        agreement_timeout: how long ranks wait for each other at construction.
        seed: of the random streams of stochastic rounding; the same on all ranks.
        sharded_tables: the tables sharded so far, to which this sharder adds its own. A rule whose glob matches none of them is
            an error, so sharders that share a policy share the set, too.
        torchrec: what TorchRec's sharder takes: ``fused_params`` and others. A ``qcomm_codecs_registry`` must be empty, since
            TorchRec's own codecs would quantize a second time.

    Raises:
        ShardingError: a ``qcomm_codecs_registry`` is given, or another argument or ``LOCAL_WORLD_SIZE`` makes no sense.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        devices_per_host: int | None = None,
        codec_factory: CodecFactory = codecs.get,
        agreement_timeout: timedelta = timedelta(minutes=5),
        seed: int = 0,
        sharded_tables: set[str] | None = None,
        **torchrec: Any,
    ) -> None:
        if qcomm_codecs_registry := torchrec.pop("qcomm_codecs_registry", None):
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
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ShardingError(describe("seed", "not a whole number", got=seed, allowed="a whole number"))
        if devices_per_host is None:
            devices_per_host = _local_world_size()
        elif isinstance(devices_per_host, bool) or not isinstance(devices_per_host, int) or devices_per_host < 1:
            raise ShardingError(
                describe("devices_per_host", "not a number of ranks", got=devices_per_host, allowed="1 or more")
            )
        warn_if_untested()
        super().__init__(**torchrec)
        self.policy = Policy() if policy is None else policy
        self.devices_per_host = devices_per_host
        self.codec_factory = codec_factory
        self.agreement_timeout = agreement_timeout
        self.seed = seed
        self.sharded_tables: set[str] = set() if sharded_tables is None else sharded_tables

    def sharding_types(self, compute_device_type: str) -> list[str]:
        """TorchRec's types less those whose exchange is not replaced."""
        offered = super().sharding_types(compute_device_type)  # type: ignore[misc]
        known = (ShardingType.DATA_PARALLEL.value, *self.sharded_module_type.quantized)
        if withheld := [kind for kind in offered if kind not in known]:
            logger.info("not offered to the planner, since not exchanged quantized: %s", ", ".join(withheld))
        return [kind for kind in offered if kind in known]

    def shard(
        self,
        module: Any,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> Any:
        """As in TorchRec.

        Raises:
            ShardingError: a sharding type or a codec that cannot be exchanged.
            DisagreementError: ranks have another policy, plan or code version, or another sharder.
        """
        sharded_type = self.sharded_module_type
        self.sharded_tables.update(config.name for config in sharded_type._table_configs(module))
        return sharded_type(
            module,
            params,
            env,
            qcomm=self._options(),
            fused_params=self.fused_params,  # type: ignore[attr-defined]
            device=device,
            module_fqn=module_fqn,
            **self._module_arguments(),
        )

    @property
    def sharded_module_type(self) -> type[QCommCollection]:
        """What `shard` returns."""
        raise NotImplementedError

    def _options(self) -> SharderOptions:
        return SharderOptions(
            self.policy, self.devices_per_host, self.codec_factory, self.agreement_timeout, self.seed, self.check_rules
        )

    def _module_arguments(self) -> dict[str, Any]:
        """What TorchRec's sharder hands on to its module besides."""
        return {}

    def check_rules(self) -> None:
        """Refuse rules whose glob matches none of the tables sharded so far.

        Raises:
            PolicyError: names every such rule.
        """
        try:
            self.policy.check_matched(self.sharded_tables)
        except PolicyError as error:
            raise PolicyError(
                f"{error}\nThe tables are those that this sharder has sharded. Others are exchanged by TorchRec, unquantized; "
                "sharders that share a policy must share sharded_tables, too, as those of get_sharders do, or its rules "
                "allow_unmatched."
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
