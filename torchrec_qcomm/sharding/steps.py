"""Counting the steps of training, which key the random streams of stochastic rounding; saved apart from TorchRec's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from torchrec_qcomm.codecs import Noise
from torchrec_qcomm.errors import ShardingError, describe


class Steps:
    """The steps of one sharded collection.

    Args:
        seed: of the run's random streams.

    Attributes:
        step: forwards in training mode so far; evaluation does not count.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.step = seed, 0

    def noise(self, rank: int, site: str) -> Noise:
        """The random stream of the current step, for an exchange at a global rank."""
        return Noise(self.seed, self.step, rank, site)


def state_dict(model: nn.Module) -> dict[str, dict[str, Any]]:
    """What the exchanges of ``model`` remember, by the path of the collection; the same on all ranks.

    It is apart from ``model.state_dict()``, which stays TorchRec's own. Save it beside that: a run that is resumed from both
    goes on with the random streams that it would have had.
    """
    return {path: {"step": steps.step} for path, steps in _found(model).items()}


def load_state_dict(model: nn.Module, state: Mapping[str, Mapping[str, Any]]) -> None:
    """Set what `state_dict` returned.

    Raises:
        ShardingError: ``state`` is of another model, or has something else in it; nothing is set then.
    """
    found = _found(model)
    if state.keys() != found.keys():
        wrong = "of another model: not the same collections"
        raise ShardingError(describe("load_state_dict", wrong, got=sorted(state), allowed=found))
    for path, saved in state.items():
        step = saved.get("step")
        if saved.keys() != {"step"} or isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ShardingError(
                describe(f"load_state_dict, {path!r}", "not a state", got=dict(saved), allowed="step: 0 or more")
            )
    for path, steps in found.items():
        steps.step = state[path]["step"]


def _found(model: nn.Module) -> dict[str, Steps]:
    return {
        path: steps
        for path, module in model.named_modules()
        if isinstance(steps := getattr(module, "qcomm_steps", None), Steps)
    }
