"""Where each table goes: TorchRec's planner, called so that all ranks end with an error if it finds no plan."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import PlannerError
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from dlrm_lib.errors import ExampleError, bad
from dlrm_lib.ranks import Ranks

TODO = (
    "Look at `sharding_types` and `compute_kernels` of the config's `sharding` entries for that table: "
    "not all of them can be had on every device, nor together."
)


def collective_plan(
    planner: EmbeddingShardingPlanner, model: nn.Module, sharders: Sequence[ModuleSharder], ranks: Ranks, source: str
) -> ShardingPlan:
    """Plan on rank 0, for all ranks. The planner's own ``collective_plan`` does the same, but if it fails on rank 0, the
    other ranks wait for a plan that never comes.

    Args:
        planner: of the plugin or of TorchRec.
        model: not sharded yet.
        sharders: that the model is going to be sharded with.
        ranks: of the process group.
        source: of the constraints, for the error.

    Raises:
        ExampleError: on every rank; there is no plan for the constraints.
    """
    answer: list[ShardingPlan | ExampleError | None] = [None]
    if ranks.rank == 0:
        try:
            answer = [planner.plan(model, list(sharders))]
        except PlannerError as error:
            answer = [ExampleError(f"{source}: TorchRec's planner: {error}")]
        except RuntimeError as error:  # nothing to choose from; its text refers to logs, which `quiet` hides
            said = str(error).partition(" To debug, search above")[0]
            answer = [bad(f"{source}: sharding", "TorchRec cannot plan this", got=said, todo=TODO)]
    dist.broadcast_object_list(answer, group=ranks.group)
    if isinstance(answer[0], ExampleError):
        raise answer[0]
    return answer[0]
