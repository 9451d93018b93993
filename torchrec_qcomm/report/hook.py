"""The hook for TorchRec's planner: a report of each plan that it makes."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from typing import Any

from torch import nn
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.distributed.planner.types import Enumerator, PlanDebugStats, ShardingOption, Stats, StorageReservation
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from torchrec_qcomm.planner.analysis import GivenSpeeds, analyse
from torchrec_qcomm.planner.findings.results import Analysis
from torchrec_qcomm.planner.job import Replicas
from torchrec_qcomm.planner.sources.options import PlannerInputs, job_from_options
from torchrec_qcomm.planner.sources.plan_file import write_plan
from torchrec_qcomm.policy import Policy
from torchrec_qcomm.report.text.page import report_text

logger = logging.getLogger(__name__)


class QCommStats(Stats):
    """Reports what a plan's exchange costs: ``EmbeddingShardingPlanner(stats=[EmbeddingStats(), QCommStats()])``.

    It never fails the planner: if it fails itself, it logs one line, and planning goes on.

    ``analysis`` and ``text`` are ``None`` if there is nothing to report: before there is a plan, after planning or the report
    failed, and on all ranks but 0 under ``collective_plan``, which plans on rank 0 alone.

    Attributes:
        analysis: of the last plan.
        text: the report of it, as logged at INFO.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        topology: Topology | None = None,
        export: str | os.PathLike[str] | None = None,
        *,
        speeds: GivenSpeeds | None = None,
        replicas: Replicas | None = None,
        hierarchical_row_wise: bool | None = None,
        pooling_known: Collection[str] = (),
    ) -> None:
        """Nothing is checked before there is a plan.

        Args:
            policy: the codecs; by default those of the sharders that the planner is given.
            topology: the machines; by default the planner's.
            export: write the plan to this file, for ``torchrec-qcomm plan --plan FILE``.
            speeds: of codecs, as `analyse` takes them; by default the time of coding is left out, and the report says so.
            replicas: with 2D parallelism, where the planner plans for one sharding group.
            hierarchical_row_wise: by default as the sharders say.
            pooling_known: names of tables whose pooling factors somebody gave.
        """
        self.analysis: Analysis | None = None
        self.text: str | None = None
        self._policy, self._topology, self._export, self._speeds = policy, topology, export, speeds
        self._replicas, self._hierarchical, self._pooling_known = replicas, hierarchical_row_wise, pooling_known

    def log(
        self,
        sharding_plan: ShardingPlan,
        topology: Topology,
        batch_size: int,
        storage_reservation: StorageReservation,
        num_proposals: int,
        num_plans: int,
        run_time: float,
        best_plan: list[ShardingOption],
        constraints: dict[str, ParameterConstraints] | None = None,
        sharders: list[ModuleSharder[nn.Module]] | None = None,
        enumerator: Enumerator | None = None,
        debug: bool = False,
        debug_stats: PlanDebugStats | None = None,
        **newer: Any,
    ) -> None:
        """What the planner calls; see `Stats`. ``newer`` is what later versions of TorchRec may add."""
        self.analysis = self.text = None
        try:
            # If it found no plan, TorchRec passes an empty plan, and its last proposal, whose shards have no ranks.
            if not best_plan or not sharding_plan.plan:
                logger.info("torchrec_qcomm: no plan was found, so there is nothing to report")
                return
            job = job_from_options(
                best_plan,
                PlannerInputs(self._topology or topology, batch_size, sharders or (), constraints or {}, self._pooling_known),
                self._policy,
                hierarchical_row_wise=self._hierarchical,
                replicas=self._replicas,
            )
            if self._export is not None:
                write_plan(job, os.fspath(self._export))
            analysis = analyse(job, speeds=self._speeds)
            text = report_text(analysis)
        except Exception as error:
            said = " ".join(str(error).split())
            logger.warning(
                "torchrec_qcomm: no report of the plan, which is not touched by that: %s: %s", type(error).__name__, said
            )
            return
        self.analysis, self.text = analysis, text
        logger.info("%s", text)
