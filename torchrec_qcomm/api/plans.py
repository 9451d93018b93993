"""Sharding plans without a running job: made from a config alone, or written by one job and read elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

from torch import nn
from torchrec.distributed.planner import Topology
from torchrec.distributed.planner.constants import BATCH_SIZE
from torchrec.distributed.types import ShardingPlan

from torchrec_qcomm import planner
from torchrec_qcomm.api.planner import estimator_of, get_constraints, get_topology, topology_of
from torchrec_qcomm.api.sharders import sharders_of
from torchrec_qcomm.config import ConfigLike, QCommConfig, as_config
from torchrec_qcomm.config.offline import DEVICE, assumed, require_blocks
from torchrec_qcomm.config.what_if import WhatIf
from torchrec_qcomm.planner import Job, ListedTable, Replicas
from torchrec_qcomm.sharding.start_up.running import says_ranks_of_a_host


def plan_offline(config: ConfigLike, *, hosts: int | None = None, replicas: Replicas | None = None) -> Job:
    """A plan by TorchRec's planner from a config alone: no devices, no process group, no data, no model.

    Args:
        config: a config, or the path of one, with ``tables`` and ``topology``.
        hosts: how many; by default as in the ``topology`` block.
        replicas: plan for 2D parallelism with such sharding groups.

    Returns:
        The job. Its assumptions say what the config leaves open.

    Raises:
        ConfigError: a block is missing.
        PlannerError: there is no plan for these machines.
    """
    config = as_config(config)
    block = require_blocks(config)
    topology = topology_of(block, hosts or block.hosts, block.device or DEVICE)
    tables = [ListedTable(t.build(), t.features or (), t.weight_dtype, t.collection == "ebc") for t in config.tables]
    model = planner.model_of(tables)
    inputs, estimator = _inputs(config, model, topology), estimator_of(config, planner.model_tables(model))
    job = planner.job_from_tables(tables, inputs, replicas=replicas, estimator=estimator)
    return replace(job, assumptions=(*job.assumptions, *assumed(config, BATCH_SIZE)))


def export_plan(plan: ShardingPlan, model: nn.Module, path: str | os.PathLike[str], config: ConfigLike) -> None:
    """Write a plan to a file that `torchrec-qcomm plan --plan` reads, on any machine.

    Args:
        plan: what ``collective_plan`` returned.
        model: not sharded yet.
        path: of the file. Ranks may all write the same.
        config: that the planner was made with. Its policy is not written.

    Raises:
        PlannerError: the plan is not of this model, or the file cannot be written.
        ConfigError: nothing says for which machines the plan is.
    """
    config = as_config(config)
    inputs = _inputs(config, model, get_topology(config))
    machines, _ = planner.machines_of(inputs.topology)
    if config.topology is None and not says_ranks_of_a_host():
        machines = replace(machines, devices_per_host=None, pod_hosts=1)
    options = planner.options_of(plan, model, inputs)
    planner.write_plan(planner.job_from_options(options, inputs, machines=machines), path)


def jobs_of(config: QCommConfig, plan: str | None, cases: Iterable[WhatIf]) -> Iterator[Job]:
    """The job of each case: of a config, or of a plan with the config's policy.

    A plan is made anew for other machines, but not for another policy.

    Args:
        config: what the cases change.
        plan: the file of a plan; ``None``: the config's tables are planned.
        cases: without changes, the job as it is.

    Raises:
        QCommError: there is no such plan, a rule matches no table, or a case has other machines than a given plan.
    """
    made: dict[tuple[int | None, Replicas | None], Job] = {}
    for case in cases:
        machines = (case.hosts, case.replicas)
        if machines not in made:
            made[machines] = _job_of_case(config, plan, case)
        job, precision = made[machines], case.policy or config
        names = {planned.table.name for planned in job.tables}
        precision.policy.check_matched(names, where=f"{precision.source}: precision.")
        yield job.under(precision.policy)


def _job_of_case(config: QCommConfig, plan: str | None, case: WhatIf) -> Job:
    """The job on the machines of a case."""
    if plan is None:
        return plan_offline(config, hosts=case.hosts, replicas=case.replicas)
    case.check_plan(plan)
    return _job_of_file(config, plan)


def _job_of_file(config: QCommConfig, plan: str) -> Job:
    """A plan on the config's machines, if it names any, with the config's settings as far as it has them."""
    machines = None if config.topology is None else planner.machines_of(get_topology(config))[0]
    job = planner.read_plan_or_stats(plan, machines, config.batch_size)
    if "hierarchical_row_wise" in config.model_fields_set:
        job = replace(job, hierarchical_row_wise=config.hierarchical_row_wise)
    return job


def _inputs(config: QCommConfig, model: nn.Module, topology: Topology) -> planner.PlannerInputs:
    """What the config says to TorchRec's planner."""
    return planner.PlannerInputs(
        topology, config.batch_size or BATCH_SIZE, sharders_of(config), get_constraints(config, model), config.pooling_known
    )
