"""Plans without a job: made from a config alone, or written by a job to be read elsewhere."""

from __future__ import annotations

import os
from dataclasses import replace

import torch
from torch import nn
from torchrec.distributed.planner.constants import BATCH_SIZE
from torchrec.distributed.types import ShardingPlan

from torchrec_qcomm import planner
from torchrec_qcomm.api.entries import (
    ConfigLike,
    as_config,
    estimator_of,
    get_constraints,
    get_topology,
    sharders_of,
    with_pooling,
)
from torchrec_qcomm.errors import ConfigError, describe
from torchrec_qcomm.planner import Job, ListedTable, Replicas, build_topology, machines_of, model_of, model_tables

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
"""Of the `tables` block."""


def plan_offline(config: ConfigLike, *, hosts: int | None = None, replicas: Replicas | None = None) -> Job:
    """A plan by TorchRec's planner from a config alone: no devices, no process group, no data, no model.

    Args:
        config: a config, or the path of one, with ``tables`` and ``topology``.
        hosts: in the place of those of the ``topology`` block.
        replicas: plan for 2D parallelism with such sharding groups.

    Returns:
        The job; what nobody gave is in its assumptions.

    Raises:
        ConfigError: a block is missing.
        PlannerError: there is no plan for these machines.
    """
    config = as_config(config)
    for name, block, todo in (
        ("tables", config.tables, "List them: `tables: [{name: t, rows: 1000, dim: 64, features: [f], pooling: [3.0]}]`."),
        ("topology", config.topology, "Name the machines: `topology: {hosts: 2, devices_per_host: 8, device: cuda}`."),
    ):
        if not block:
            wrong = "without a model, nothing is known but what this block says"
            raise ConfigError(describe(f"{config.source}: {name}", wrong, got=None, allowed=f"a `{name}` block", todo=todo))
    block = config.topology
    assert block is not None
    topology = build_topology(
        (hosts or block.hosts) * block.devices_per_host,
        block.devices_per_host,
        block.device or "cuda",
        block.intra_host_gb_per_s,
        block.inter_host_gb_per_s,
        block.pod_hosts,
        block.memory_gb,
    )
    tables = [ListedTable(t.build(), t.features or (), _DTYPES[t.dtype], t.collection == "ebc") for t in config.tables]
    model = model_of(tables)
    inputs = planner.PlannerInputs(
        topology,
        config.batch_size or BATCH_SIZE,
        sharders_of(config),
        get_constraints(config, model),
        with_pooling(config),
    )
    job = planner.job_from_tables(tables, inputs, replicas=replicas, estimator=estimator_of(config, model_tables(model)))
    assumed = [] if config.batch_size else [f"batch size {BATCH_SIZE} a rank, TorchRec's default"]
    assumed += [] if block.device else ["devices are cuda"]
    if block.memory_gb is None:
        assumed.append("a device has the memory that TorchRec takes if topology.memory_gb is not given: 32 GiB of a GPU")
    return replace(job, assumptions=(*job.assumptions, *assumed))


def export_plan(plan: ShardingPlan, model: nn.Module, path: str | os.PathLike[str], config: ConfigLike) -> None:
    """Write a plan to a file that `torchrec-qcomm plan --plan` reads, on machines where there is no such job.

    Args:
        plan: what ``collective_plan`` returned.
        model: not sharded yet.
        path: of the file. Ranks may all write the same.
        config: that the planner was made with. Its policy is not written.

    Raises:
        PlannerError: the plan is not of this model, or the file cannot be written.
        ConfigError: nothing says on which machines the plan is.
    """
    config = as_config(config)
    inputs = planner.PlannerInputs(
        get_topology(config),
        config.batch_size or BATCH_SIZE,
        sharders_of(config),
        get_constraints(config, model),
        with_pooling(config),
    )
    known = config.topology is not None or "LOCAL_WORLD_SIZE" in os.environ
    machines, _ = machines_of(inputs.topology)
    job = planner.job_from_options(
        planner.options_of(plan, model, inputs),
        inputs,
        machines=machines if known else replace(machines, devices_per_host=None, pod_hosts=1),
    )
    planner.write_plan(job, path)
