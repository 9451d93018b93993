"""What sharded collections of this package have in common: ranks agree before one is built, and its rules are checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from torchrec.distributed.types import ParameterSharding, ShardingEnv

from torchrec_qcomm.collectives import Observers
from torchrec_qcomm.sharding.dists.settings import CollectionSettings
from torchrec_qcomm.sharding.modules.options import SharderOptions
from torchrec_qcomm.sharding.plan import TableConfig
from torchrec_qcomm.sharding.precision import Precision, table_codecs
from torchrec_qcomm.sharding.start_up.agreement import agree
from torchrec_qcomm.sharding.start_up.checks import check_plan
from torchrec_qcomm.sharding.start_up.hosts import exchange_group
from torchrec_qcomm.sharding.start_up.record import common_record
from torchrec_qcomm.state.exchange import ExchangeState


class QCommCollection:
    """Mixed into a sharded collection of TorchRec, whose constructor's arguments it takes, with ``qcomm``: what its
    sharder tells it.

    Attributes:
        quantized: TorchRec's sharding types, and the classes that shard so with the exchange quantized.
        qcomm_observers: told of the exchanges of this module.
        qcomm_state: what they remember.
    """

    quantized: ClassVar[Mapping[str, type]]

    def __init__(
        self,
        module: nn.Module,
        table_name_to_parameter_sharding: dict[str, ParameterSharding],
        env: ShardingEnv,
        *,
        qcomm: SharderOptions,
        module_fqn: str | None = None,
        **kwargs: Any,
    ) -> None:
        # TorchRec's constructor asks for the shardings, so what they need must stand before it runs. And it may run collectives
        # that ranks with other plans do not join, so the ranks agree before.
        configs, plan = self._table_configs(module), table_name_to_parameter_sharding

        def record() -> dict[str, Any]:
            check_plan(configs, plan, kwargs.get("device"), self.quantized)
            codecs = table_codecs(configs, plan, qcomm.policy, qcomm.devices_per_host, qcomm.codec_factory)
            self._qcomm_precision = Precision(codecs)
            common = common_record(codecs, configs, plan, kwargs)
            return common | {"seed": qcomm.seed} | self._own_record(qcomm, env)

        agree(exchange_group(env), module_fqn or "", qcomm.agreement_timeout, record)
        self._qcomm, self._qcomm_rules_checked = qcomm, False
        name = f"{module_fqn or ''}/{'/'.join(config.name for config in configs)}"
        self.qcomm_observers, self.qcomm_state = Observers(), ExchangeState(qcomm.seed, name)
        super().__init__(module, plan, env, module_fqn=module_fqn, **kwargs)  # type: ignore[call-arg]

    @staticmethod
    def _table_configs(module: nn.Module) -> list[TableConfig]:
        """The tables of an unsharded module."""
        raise NotImplementedError

    def _own_record(self, qcomm: SharderOptions, env: ShardingEnv) -> dict[str, Any]:
        """What else ranks must have in common for a collection of this kind; told before TorchRec's constructor runs."""
        return {}

    def _quantized_sharding(self, sharding_class: type, *args: Any, **kwargs: Any) -> Any:
        shared = CollectionSettings(self._qcomm_precision, self.qcomm_observers, self.qcomm_state)
        return sharding_class(*args, qcomm=shared, **kwargs)

    @torch.compiler.disable(recursive=False)
    def input_dist(self, ctx: Any, features: Any) -> Any:
        """TorchRec's own; the first call also checks that every rule found a table, once all modules are sharded."""
        self._check_rules()
        return super().input_dist(ctx, features)  # type: ignore[misc]

    def compute(self, ctx: Any, dist_input: Any) -> Any:
        """TorchRec's own; called by managed collisions, whose ids go around `input_dist`."""
        self._check_rules()
        return super().compute(ctx, dist_input)  # type: ignore[misc]

    @torch.compiler.disable(recursive=False)
    def output_dist(self, ctx: Any, output: Any) -> Any:
        """TorchRec's own; a step of training."""
        self._advance()
        return super().output_dist(ctx, output)  # type: ignore[misc]

    @torch.compiler.disable(recursive=False)
    def compute_and_output_dist(self, ctx: Any, input: Any) -> Any:
        """TorchRec's own; a step of training."""
        self._advance()
        return super().compute_and_output_dist(ctx, input)  # type: ignore[misc]

    @torch.compiler.disable
    def _advance(self) -> None:
        self.qcomm_state.advance(self.training)  # type: ignore[attr-defined]

    def _check_rules(self) -> None:
        if not self._qcomm_rules_checked:
            self._qcomm.check_rules()
            self._qcomm_rules_checked = True
