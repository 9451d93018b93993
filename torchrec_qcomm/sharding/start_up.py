"""What is looked at before a collection is sharded: its plan, its codecs, and what all ranks must have in common."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torchrec.distributed.comm import get_topology_group_world_size
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.types import ParameterSharding, ShardingEnv, ShardingEnv2D, ShardingType
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType

from torchrec_qcomm.errors import ShardingError, describe
from torchrec_qcomm.policy import Policy, Table
from torchrec_qcomm.sharding.sites import CodecFactory, SiteCodecs
from torchrec_qcomm.sharding.versions import torchrec_version
from torchrec_qcomm.version import __version__

logger = logging.getLogger(__name__)

Plan = dict[str, ParameterSharding]
TableConfig: TypeAlias = EmbeddingBagConfig | EmbeddingConfig

_MOVABLE_TYPES = (ShardingType.TABLE_WISE.value, ShardingType.COLUMN_WISE.value)


def site_codecs(
    configs: Sequence[TableConfig],
    params: Plan,
    policy: Policy,
    devices_per_host: int | None,
    codec_factory: CodecFactory,
) -> SiteCodecs:
    """The codecs of a collection's tables.

    Raises:
        ShardingError: the policy needs to know the hosts and cannot.
    """
    resolved = policy.resolve(Table(c.name, c.num_embeddings, c.embedding_dim) for c in configs)
    sites = SiteCodecs(resolved, devices_per_host, codec_factory)
    hosts, world = sites.devices_per_host, dist.get_world_size() if dist.is_initialized() else 1
    if hosts and world % hosts:
        wrong = "the policy tells links apart, and the ranks do not fill hosts of this size"
        raise ShardingError(describe("devices per host (LOCAL_WORLD_SIZE)", wrong, got=hosts, allowed=f"a divisor of {world}"))
    alone = [c.name for c in configs if params[c.name].sharding_type == ShardingType.DATA_PARALLEL.value]
    if idle := [name for name in alone if resolved.quantizes(name)]:
        logger.warning("the policy quantizes tables that are data-parallel and so are not exchanged: %s", ", ".join(idle))
    return sites


def common_record(sites: SiteCodecs, configs: Sequence[TableConfig], params: Plan, kwargs: dict[str, Any]) -> dict[str, Any]:
    """All that must be equal on all ranks for their byte plans to fit."""

    def shape(config: TableConfig) -> dict[str, Any]:
        return {"rows": config.num_embeddings, "dim": config.embedding_dim, "features": list(config.feature_names)}

    return {
        "torchrec_qcomm version": __version__,
        "torchrec version": torchrec_version(),
        "devices_per_host": sites.devices_per_host,
        "ranks of a host in TorchRec (LOCAL_WORLD_SIZE)": _host_group_size(params),
        "output_dtype": str((kwargs.get("fused_params") or {}).get("output_dtype")),
        "tables": {config.name: shape(config) for config in configs},
        "order of the tables": [config.name for config in configs],
        "order of the sharding types": kwargs.get("sharded_module_order_overwrite"),
        "policy": sites.policy.to_dict(),
        "plan": {config.name: _placement(params[config.name]) for config in configs},
    }


def _host_group_size(params: Plan) -> int | None:
    """Ranks of the groups that TorchRec makes of each host, if a table needs them: ranks that make others hang in it."""
    in_hosts = (ShardingType.TABLE_ROW_WISE.value, ShardingType.GRID_SHARD.value)
    if not dist.is_initialized() or all(sharding.sharding_type not in in_hosts for sharding in params.values()):
        return None
    return int(get_topology_group_world_size(dist.get_world_size()))


def moves_record(changed: Plan, backend: str | None) -> dict[str, Any]:
    """All that must be equal on all ranks for TorchRec to move shards from one to another."""
    changes = {table: _placement(sharding) for table, sharding in changed.items()}
    record: dict[str, Any] = {"changes": changes, "order of the changes": list(changes)}
    if backend == "gloo":
        # TorchRec tags the messages with hashes of texts. gloo waits for the right tag for ever, others take no notice of it.
        record["PYTHONHASHSEED, seen in the hash of a text"] = hash("a text")
    return record


def _placement(sharding: ParameterSharding) -> dict[str, Any]:
    shards = getattr(sharding.sharding_spec, "shards", None) or ()
    return {
        "sharding_type": sharding.sharding_type,
        "ranks": list(sharding.ranks or ()),
        "columns": [shard.shard_sizes[1] for shard in shards],
        "compute_kernel": EmbeddingComputeKernel(sharding.compute_kernel).value,
        "output_dtype": str(sharding.output_dtype),
    }


def exchange_group(env: ShardingEnv) -> dist.ProcessGroup | None:
    """The ranks that exchange with each other: with 2D parallelism those of a sharding group, whose plans differ."""
    return env.sharding_pg if isinstance(env, ShardingEnv2D) else env.process_group


def check_plan(configs: Sequence[TableConfig], params: Plan, device: torch.device | None, quantized: Collection[str]) -> None:
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


def check_shards(configs: Sequence[TableConfig], params: Plan, device: torch.device | None, quantized: Collection[str]) -> None:
    """`check_plan` where tables that ``params`` does not name stay as they are."""
    planned = [config for config in configs if config.name in params]
    _refuse_unsupported(params, [config.name for config in planned], quantized)
    _refuse_grid_means(planned, params)
    _refuse_empty_shards(params, [config.name for config in planned], device)


def check_moves(current: Plan, changed: Plan) -> None:
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


def _refuse_unsupported(params: Plan, tables: list[str], quantized: Collection[str]) -> None:
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


def _refuse_grid_means(configs: Sequence[TableConfig], params: Plan) -> None:
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


def _refuse_empty_shards(params: Plan, tables: list[str], device: torch.device | None) -> None:
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
