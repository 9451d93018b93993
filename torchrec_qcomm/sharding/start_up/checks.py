"""Refuses plans that cannot be exchanged, or that TorchRec gets wrong, before a collection is sharded."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torchrec.distributed.types import ShardingType
from torchrec.modules.embedding_configs import PoolingType

from torchrec_qcomm.errors import ShardingError, describe
from torchrec_qcomm.sharding.plan import ModulePlan, TableConfig

_MOVABLE_TYPES = (ShardingType.TABLE_WISE.value, ShardingType.COLUMN_WISE.value)


def check_plan(
    configs: Sequence[TableConfig], params: ModulePlan, device: torch.device | None, quantized: Collection[str]
) -> None:
    """Refuse what cannot be exchanged, and what TorchRec gets wrong.

    Args:
        configs: the tables of the collection.
        params: how each is sharded.
        device: that the tables will be on.
        quantized: the sharding types whose exchange is replaced.

    Raises:
        ShardingError: names the table.
    """
    for config in configs:
        if config.name not in params:
            raise ShardingError(describe("plan", "a table of the collection is not in it", got=config.name, allowed=params))
    check_shards(configs, params, device, quantized)


def check_shards(
    configs: Sequence[TableConfig], params: ModulePlan, device: torch.device | None, quantized: Collection[str]
) -> None:
    """`check_plan` where tables that ``params`` does not name stay as they are."""
    planned = [config for config in configs if config.name in params]
    _refuse_unsupported(params, [config.name for config in planned], quantized)
    _refuse_grid_means(planned, params)
    _refuse_empty_shards(params, [config.name for config in planned], device)


def check_moves(current: ModulePlan, changed: ModulePlan) -> None:
    """Refuse changes that TorchRec's dynamic resharding makes by half before it fails or hangs.

    Raises:
        ShardingError: names the table.
    """
    for table, sharding in changed.items():
        if table not in current:
            raise ShardingError(describe("changes of the plan", "not a table of the module", got=table, allowed=current))
        where = f"table {table!r}, {current[table].sharding_type}"
        movable = [kind for kind in _MOVABLE_TYPES if kind == current[table].sharding_type]
        if sharding.sharding_type not in movable:
            wrong = "TorchRec cannot change its shards like this"
            allowed = movable or f"no change, since only tables that are {' or '.join(_MOVABLE_TYPES)} can move"
            raise ShardingError(describe(where, wrong, got=sharding.sharding_type, allowed=allowed))
        for ranks in (current[table].ranks or (), sharding.ranks or ()):
            if len(set(ranks)) < len(ranks):
                wrong = "TorchRec cannot move it from or to a rank with several shards of it"
                raise ShardingError(describe(where, wrong, got=list(ranks), allowed="one shard for a rank"))
    for table, sharding in (current | changed).items():
        widths = [shard.shard_sizes[1] for shard in getattr(sharding.sharding_spec, "shards", None) or ()]
        if len(set(widths)) > 1:
            # Moved or not: all tables are loaded again in the end.
            wrong = "TorchRec cannot load column shards of unequal widths, and so no table of the module can move"
            raise ShardingError(
                describe(f"table {table!r}, {sharding.sharding_type}", wrong, got=widths, allowed="equal widths")
            )


def _refuse_unsupported(params: ModulePlan, tables: list[str], quantized: Collection[str]) -> None:
    """Raise ``ShardingError`` for a sharding type that a newer TorchRec may have and this package has not."""
    supported = (ShardingType.DATA_PARALLEL.value, *quantized)
    for table in tables:
        if params[table].sharding_type not in supported:
            raise ShardingError(
                describe(
                    f"table {table!r}",
                    "the exchange of this sharding type is not supported yet",
                    got=params[table].sharding_type,
                    allowed=supported,
                )
            )


def _refuse_grid_means(configs: Sequence[TableConfig], params: ModulePlan) -> None:
    """TorchRec sums the rows of grid tables and forgets to divide: its result is wrong, and nothing says so."""
    for config in configs:
        means = getattr(config, "pooling", None) == PoolingType.MEAN
        if params[config.name].sharding_type == ShardingType.GRID_SHARD.value and means:
            raise ShardingError(
                describe(
                    f"table {config.name!r}, grid_shard",
                    "TorchRec returns sums where means are asked for, with this sharding",
                    got="mean pooling",
                    allowed="sum pooling",
                    todo="Shard the table another way, or divide the sums yourself.",
                )
            )


def _refuse_empty_shards(params: ModulePlan, tables: list[str], device: torch.device | None) -> None:
    """More ranks than rows: TorchRec's lookup takes such shards on GPUs only, and ends in an error of another kind on CPU."""
    if device is None or device.type != "cpu":
        return
    for table in tables:
        shards = getattr(params[table].sharding_spec, "shards", None) or ()
        if any(shard.shard_sizes[0] == 0 for shard in shards):
            raise ShardingError(
                describe(
                    f"table {table!r}, {params[table].sharding_type}",
                    "a rank would own no rows, which TorchRec cannot look up on CPU",
                    got=[shard.shard_sizes[0] for shard in shards],
                    allowed="at least one row for each rank",
                    todo="Shard the table another way, or over fewer ranks.",
                )
            )
