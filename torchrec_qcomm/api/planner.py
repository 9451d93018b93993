"""From a config to TorchRec's planner, and to what it takes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.constants import BATCH_SIZE
from torchrec.distributed.planner.stats import EmbeddingStats
from torchrec.distributed.utils import get_device_type

from torchrec_qcomm import planner
from torchrec_qcomm.config import ConfigLike, QCommConfig, TopologyConfig, as_config
from torchrec_qcomm.config.listed_tables import check_tables
from torchrec_qcomm.config.machines import check_machines, device_name
from torchrec_qcomm.report.hook import QCommStats
from torchrec_qcomm.sharding import sharders_that_take
from torchrec_qcomm.sharding.start_up.running import running_device, running_devices_per_host, running_world_size

logger = logging.getLogger(__name__)


def get_planner(
    config: ConfigLike, model: nn.Module, device: str | torch.device | None = None, **planner_args: Any
) -> EmbeddingShardingPlanner:
    """TorchRec's planner for a model, with the config's topology, batch size and constraints, and the costs of its policy.

    What an exchange costs is taken from the bytes of each table's codecs and the bandwidth of each link. TorchRec's own
    estimates come back with ``enumerator=EmbeddingEnumerator(...)``.

    Args:
        config: a config, or the path of one.
        model: not sharded yet; may be on the meta device.
        device: as for ``get_topology``.
        planner_args: further arguments of ``EmbeddingShardingPlanner`` (``debug``, ``storage_reservation``, ...). By default
            ``stats`` are TorchRec's own and a `QCommStats`, and the ``enumerator`` counts the bytes of the policy.

    Raises:
        ConfigError: the config does not fit the running process group, or its ``tables`` are not those of the model.
        PolicyError: a glob of a rule or of ``sharding`` matches no table of the model.
    """
    config, tables = as_config(config), planner.required_tables(model)
    config.policy.check_matched({entry.table.name for entry in tables}, where=f"{config.source}: precision.")
    takers = sharders_that_take(model, {entry.module for entry in tables})
    ours = [entry for entry in tables if entry.module in takers and takers[entry.module][1]]
    native = [entry.table for entry in tables if entry.module in takers and not takers[entry.module][1]]
    if idle := [table.name for table in native if config.policy.resolve([table]).quantizes(table.name)]:
        logger.warning("the policy quantizes tables that TorchRec exchanges itself, unquantized: %s", ", ".join(idle))
    if config.batch_size is None:
        logger.info("%s gives no batch_size: the planner takes TorchRec's default", config.source)
    topology, constraints = get_topology(config, device=device), get_constraints(config, model)
    estimator = estimator_of(config, tables, [table.name for table in native])
    enumerator = planner.wire_aware_enumerator(estimator, topology, config.batch_size or BATCH_SIZE, constraints)
    on = topology.compute_device
    offered = {entry.table.name: takers[entry.module][0].sharding_types(on) for entry in ours}
    planner.check_offered(constraints, offered, on, where=f"{config.source}: sharding")
    stats = [EmbeddingStats(), QCommStats(pooling_known=config.pooling_known)]
    given = {"enumerator": enumerator, "stats": stats, **planner_args}
    return EmbeddingShardingPlanner(topology=topology, batch_size=config.batch_size, constraints=constraints, **given)


def get_constraints(config: ConfigLike, model: nn.Module) -> dict[str, ParameterConstraints]:
    """The planner's constraints by exact table name: globs of ``sharding`` resolved on the model's tables.

    Pooling factors come from ``sharding``, then from ``tables``, and are 1 otherwise.

    Raises:
        ConfigError: the ``tables`` of the config are not those of the model.
        PolicyError: a glob matches no table, or pooling factors do not fit the features of a table.
    """
    config, tables = as_config(config), planner.required_tables(model)
    check_tables(config, [entry.table for entry in tables])
    constraints = [planner.Constraint(**dict(entry)) for entry in config.sharding]
    pooling = {table.name: table.pooling for table in config.tables if table.pooling}
    return planner.build_constraints(constraints, tables, pooling, where=f"{config.source}: sharding")


def get_topology(
    config: ConfigLike | None = None,
    world_size: int | None = None,
    local_world_size: int | None = None,
    device: str | torch.device | None = None,
) -> Topology:
    """TorchRec's ``Topology``.

    Args:
        config: a config, or the path of one; its ``topology`` block decides if it has one.
        world_size: ranks in all; by default of the running process group, if there is one.
        local_world_size: ranks on each host; by default ``LOCAL_WORLD_SIZE`` from the environment.
        device: ``cpu``, ``cuda`` or ``mtia``; by default what TorchRec finds on this machine.

    Raises:
        ConfigError: the block disagrees with the arguments or the running process group, or nothing says how many ranks
            there are.
    """
    config = None if config is None else as_config(config)
    name = device_name(device)
    world_size = running_world_size() if world_size is None else world_size
    if config is None or (block := config.topology) is None:
        return planner.topology_of_ranks(world_size, local_world_size, name)
    check_machines(block, config.source, world_size, local_world_size or running_devices_per_host(), name, running_device())
    return topology_of(block, block.hosts, block.device or name or get_device_type())


def topology_of(block: TopologyConfig, hosts: int, device: str) -> Topology:
    """That of the block, with so many hosts and such devices."""
    return planner.build_topology(
        hosts * block.devices_per_host,
        block.devices_per_host,
        device,
        block.intra_host_gb_per_s,
        block.inter_host_gb_per_s,
        block.pod_hosts,
        block.memory_gb,
    )


def estimator_of(
    config: QCommConfig, tables: Sequence[planner.ModelTable], untouched: Iterable[str] = ()
) -> planner.WireAwareEstimator:
    """The costs of an exchange under the config's policy."""
    hierarchical = config.hierarchical_row_wise
    return planner.WireAwareEstimator(config.policy, tables, untouched=untouched, hierarchical_row_wise=hierarchical)
