"""From a config to what ``DistributedModelParallel`` and TorchRec's planner take."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.comm import get_local_size
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.constants import BATCH_SIZE
from torchrec.distributed.planner.stats import EmbeddingStats
from torchrec.distributed.types import ModuleSharder
from torchrec.distributed.utils import get_device_type

from torchrec_qcomm.config import DEVICES, QCommConfig, TopologyConfig, load_config
from torchrec_qcomm.errors import ConfigError, PolicyError, describe
from torchrec_qcomm.planner import (
    Constraint,
    ModelTable,
    WireAwareEstimator,
    build_constraints,
    build_topology,
    model_tables,
    wire_aware_enumerator,
)
from torchrec_qcomm.policy import Policy
from torchrec_qcomm.policy.globs import matches
from torchrec_qcomm.report.hook import QCommStats
from torchrec_qcomm.sharding import default_sharders

logger = logging.getLogger(__name__)

ConfigLike = QCommConfig | str | os.PathLike[str]


def get_sharders(
    config: ConfigLike | Policy | None = None, *, agreement_timeout: timedelta = timedelta(minutes=5)
) -> list[ModuleSharder[nn.Module]]:
    """A drop-in for TorchRec's ``get_default_sharders()``: the same list, with a quantizing sharder where there is one.

    Args:
        config: a config, the path of one, or a policy. ``None``: every table moves as it is.
        agreement_timeout: how long ranks wait for each other when a collection is sharded.

    Returns:
        TorchRec's sharders in TorchRec's order, with our counterpart in the place of each that has one. Those share the policy,
        so its rules are checked over the tables of all. Logs at INFO which is whose.

    Raises:
        ConfigError: the config is wrong, or is for other machines than those of the running process group.
    """
    policy, devices_per_host, hierarchical, seed = Policy(), None, False, 0
    if isinstance(config, Policy):
        policy = config
    elif config is not None:
        config = as_config(config)
        policy, hierarchical, seed = config.policy, config.hierarchical_row_wise, config.seed
        if config.topology is not None:
            _check_machines(
                config.topology, config.source, _running_world(), _running_local(), _running_device(config.topology)
            )
            devices_per_host = config.topology.devices_per_host
    sharders = default_sharders(
        policy,
        hierarchical_row_wise=hierarchical,
        devices_per_host=devices_per_host,
        agreement_timeout=agreement_timeout,
        seed=seed,
    )
    ours, native = (", ".join(s.module_type.__name__ for s, is_ours in sharders if is_ours is kind) for kind in (True, False))
    logger.info("exchanged by torchrec_qcomm: %s; by TorchRec itself, unquantized: %s", ours, native)
    return [sharder for sharder, _ in sharders]


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
            ``stats`` are TorchRec's own and a `QCommStats`, and the ``enumerator`` reckons with the bytes of the policy.

    Raises:
        ConfigError: the config does not fit the running process group, or its ``tables`` are not those of the model.
        PolicyError: a glob of a rule or of ``sharding`` matches no table of the model.
    """
    config = as_config(config)
    config.policy.check_matched({entry.table.name for entry in _tables(model)}, where=f"{config.source}: precision.")
    taken = _taken(model)
    native = [entry.table for entry, _, is_ours in taken if not is_ours]
    if idle := [table.name for table in native if config.policy.resolve([table]).quantizes(table.name)]:
        logger.warning("the policy quantizes tables that TorchRec exchanges itself, unquantized: %s", ", ".join(idle))
    if config.batch_size is None:
        logger.info("%s gives no batch_size: the planner takes TorchRec's default", config.source)
    topology, constraints = get_topology(config, device=device), get_constraints(config, model)
    estimator = estimator_of(config, _tables(model), [table.name for table in native])
    enumerator = wire_aware_enumerator(estimator, topology, config.batch_size or BATCH_SIZE, constraints)
    offered = {
        entry.table.name: sharder.sharding_types(topology.compute_device) for entry, sharder, is_ours in taken if is_ours
    }
    _check_offered(config, constraints, offered, topology.compute_device)
    stats = [EmbeddingStats(), QCommStats(pooling_known=with_pooling(config))]
    given = {"enumerator": enumerator, "stats": stats, **planner_args}
    return EmbeddingShardingPlanner(topology=topology, batch_size=config.batch_size, constraints=constraints, **given)


def get_constraints(config: ConfigLike, model: nn.Module) -> dict[str, ParameterConstraints]:
    """The planner's constraints by exact table name: globs of ``sharding`` resolved on the model's tables.

    Pooling factors come from ``sharding``, then from ``tables``, and are 1 otherwise.

    Raises:
        ConfigError: the ``tables`` of the config are not those of the model.
        PolicyError: a glob matches no table, or pooling factors do not fit the features of a table.
    """
    config = as_config(config)
    tables = _tables(model)
    _check_tables(config, tables)
    constraints = [
        Constraint(
            entry.tables,
            entry.sharding_types,
            entry.compute_kernels,
            entry.min_partition,
            entry.pooling_factors,
            entry.allow_unmatched,
        )
        for entry in config.sharding
    ]
    pooling = {table.name: table.pooling for table in config.tables if table.pooling}
    return build_constraints(constraints, tables, pooling, where=f"{config.source}: sharding")


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
    device = None if device is None else device.type if isinstance(device, torch.device) else str(device).partition(":")[0]
    if device not in (None, *DEVICES):
        raise ConfigError(describe("get_topology: device", "TorchRec's planner does not know it", got=device, allowed=DEVICES))
    world_size = _running_world() if world_size is None else world_size
    if config is not None and config.topology is not None:
        block = config.topology
        _check_machines(
            block, config.source, world_size, local_world_size or _running_local(), device or _running_device(block)
        )
        return build_topology(
            block.world_size,
            block.devices_per_host,
            block.device or device or get_device_type(),
            block.intra_host_gb_per_s,
            block.inter_host_gb_per_s,
            block.pod_hosts,
            block.memory_gb,
        )
    if world_size is None:
        todo = "Start the process group first, pass world_size, or write a `topology` block."
        raise ConfigError(describe("get_topology: world_size", "unknown", got=None, allowed="1 or more", todo=todo))
    if world_size < 1:
        raise ConfigError(describe("get_topology: world_size", "not a number of ranks", got=world_size, allowed="1 or more"))
    local = get_local_size(world_size) if local_world_size is None else local_world_size
    if local < 1 or world_size % local:
        wrong = f"{world_size} ranks cannot be split over hosts of this size"
        raise ConfigError(describe("get_topology: local_world_size", wrong, got=local, allowed=f"a divisor of {world_size}"))
    return build_topology(world_size, local, device or get_device_type())


def sharders_of(config: QCommConfig) -> list[ModuleSharder[nn.Module]]:
    """Those of a job with this config, wherever it runs."""
    hosts = {} if config.topology is None else {"devices_per_host": config.topology.devices_per_host}
    ours = default_sharders(config.policy, hierarchical_row_wise=config.hierarchical_row_wise, **hosts)
    return [sharder for sharder, _ in ours]


def estimator_of(config: QCommConfig, tables: Sequence[ModelTable], untouched: Iterable[str] = ()) -> WireAwareEstimator:
    """The costs of an exchange under the config's policy."""
    hierarchical = config.hierarchical_row_wise
    return WireAwareEstimator(config.policy, tables, untouched=untouched, hierarchical_row_wise=hierarchical)


def as_config(config: ConfigLike) -> QCommConfig:
    """Load it, if it is a path."""
    if isinstance(config, QCommConfig):
        return config
    if isinstance(config, (str, os.PathLike)):
        return load_config(config)
    raise ConfigError(describe("config", "not a config", got=config, allowed="a QCommConfig, or the path of a YAML file"))


def _tables(model: nn.Module) -> tuple[ModelTable, ...]:
    tables = model_tables(model)
    if not tables:
        todo = "Pass the model before it is sharded."
        allowed = "a model with an EmbeddingBagCollection or EmbeddingCollection"
        raise PolicyError(describe("model", "no embedding tables found", got=type(model).__name__, allowed=allowed, todo=todo))
    return tables


def _taken(model: nn.Module) -> list[tuple[ModelTable, ModuleSharder[nn.Module], bool]]:
    """The tables that sharders of `get_sharders` take, each with that sharder and whether it is ours."""
    kinds = {sharder.module_type: (sharder, is_ours) for sharder, is_ours in default_sharders()}
    whole: dict[str, tuple[ModuleSharder[nn.Module], bool]] = {}  # by path; what is inside of one is sharded with it
    for path, module in model.named_modules():
        if type(module) in kinds and not any(_inside(path, outer) for outer in whole):
            whole[path] = kinds[type(module)]
    return [(entry, *whole[outer]) for entry in model_tables(model) for outer in whole if _inside(entry.module, outer)]


def _inside(path: str, outer: str) -> bool:
    return path == outer or outer == "" or path.startswith(f"{outer}.")


def _check_offered(
    config: QCommConfig, constraints: dict[str, ParameterConstraints], offered: dict[str, list[str]], device: str
) -> None:
    """TorchRec's planner ends in an error without a place if nothing is left to choose from."""
    problems = []
    for name in sorted(offered.keys() & constraints.keys()):
        wanted = constraints[name].sharding_types
        if wanted and not set(wanted) & set(offered[name]):
            wrong = f"none of the sharding types of table {name!r} can be had on {device}"
            allowed = offered[name] or "nothing"
            problems.append(describe(f"{config.source}: sharding", wrong, got=list(wanted), allowed=allowed))
    if problems:
        raise ConfigError("\n".join(problems))


def _check_tables(config: QCommConfig, tables: tuple[ModelTable, ...]) -> None:
    """What `check` printed must be what runs: a ``tables`` block is that of the model, or the config is wrong."""
    if not config.tables:
        return
    listed = {table.name: table.build() for table in config.tables}
    real = {entry.table.name: entry.table for entry in tables}
    todo = "Make the `tables` block that of the model, or leave it out."
    problems = []
    for name in sorted(listed.keys() | real.keys()):
        where = f"{config.source}: tables: {name!r}"
        if name not in real:
            problems.append(describe(where, "not a table of the model", got=name, allowed=real, todo=todo))
        elif name not in listed:
            problems.append(describe(where, "the model has this table, the block has not", got=name, allowed=listed, todo=todo))
        elif listed[name] != real[name]:
            sizes = f"rows {real[name].rows}, dim {real[name].dim}, as in the model"
            got = f"rows {listed[name].rows}, dim {listed[name].dim}"
            problems.append(describe(where, "other sizes than in the model", got=got, allowed=sizes, todo=todo))
    if problems:
        raise ConfigError("\n".join(problems))


def _running_world() -> int | None:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else None


def _running_local() -> int | None:
    """Ranks per host of the running job, if there is one that says so."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(local) if _running_world() is not None and local.isdigit() else None


def _running_device(block: TopologyConfig) -> str | None:
    """The device of this machine, if a job runs on it that cannot be on the block's device."""
    # A CPU job on a machine with GPUs is nobody's mistake.
    return None if _running_world() is None or block.device in (None, "cpu") else get_device_type()


def _check_machines(block: TopologyConfig, source: str, world: int | None, local: int | None, device: str | None) -> None:
    shape = f"{block.hosts} hosts x {block.devices_per_host} devices"
    todo = "Start it on such machines, change the `topology` block, or leave it out to take the machines as they are."
    if world is not None and world != block.world_size:
        wrong = f"the file is for {shape}, the job has another number of ranks"
        raise ConfigError(describe(f"{source}: topology", wrong, got=world, allowed=[block.world_size], todo=todo))
    if local is not None and local != block.devices_per_host:
        wrong = f"the file is for {shape}, the job has another number of ranks per host (LOCAL_WORLD_SIZE)"
        where = f"{source}: topology.devices_per_host"
        raise ConfigError(describe(where, wrong, got=local, allowed=[block.devices_per_host], todo=todo))
    if device is not None and block.device not in (None, device):
        wrong = "the file is for another device than the job"
        raise ConfigError(describe(f"{source}: topology.device", wrong, got=device, allowed=[block.device], todo=todo))


def with_pooling(config: QCommConfig) -> set[str]:
    """The listed tables whose pooling factors the config gives."""
    named = {table.name for table in config.tables if table.pooling}
    for entry in config.sharding:
        if entry.pooling_factors:
            named |= {table.name for table in config.tables if matches(table.name, entry.tables)}
    return named
