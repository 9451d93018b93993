"""What all ranks must have in common before they exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torchrec.distributed.comm import get_topology_group_world_size
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.types import ParameterSharding, ShardingType

from torchrec_qcomm.sharding.plan import ModulePlan, TableConfig
from torchrec_qcomm.sharding.precision import TableCodecs
from torchrec_qcomm.sharding.versions import torchrec_version
from torchrec_qcomm.version import __version__


def common_record(
    codecs: TableCodecs, configs: Sequence[TableConfig], params: ModulePlan, kwargs: dict[str, Any]
) -> dict[str, Any]:
    """All that must be equal on all ranks for their layouts to fit."""

    def shape(config: TableConfig) -> dict[str, Any]:
        return {"rows": config.num_embeddings, "dim": config.embedding_dim, "features": list(config.feature_names)}

    return {
        "torchrec_qcomm version": __version__,
        "torchrec version": torchrec_version(),
        "devices_per_host": codecs.devices_per_host,
        "ranks of a host in TorchRec (LOCAL_WORLD_SIZE)": _host_group_size(params),
        "output_dtype": str((kwargs.get("fused_params") or {}).get("output_dtype")),
        "tables": {config.name: shape(config) for config in configs},
        "order of the tables": [config.name for config in configs],
        "order of the sharding types": kwargs.get("sharded_module_order_overwrite"),
        "policy": codecs.policy.to_dict(),
        "plan": {config.name: _placement(params[config.name]) for config in configs},
    }


def _host_group_size(params: ModulePlan) -> int | None:
    """Ranks of the groups that TorchRec makes of each host, if a table needs them: ranks that make others hang in it."""
    in_hosts = (ShardingType.TABLE_ROW_WISE.value, ShardingType.GRID_SHARD.value)
    if not dist.is_initialized() or all(sharding.sharding_type not in in_hosts for sharding in params.values()):
        return None
    return int(get_topology_group_world_size(dist.get_world_size()))


def moves_record(changed: ModulePlan, backend: str | None) -> dict[str, Any]:
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
