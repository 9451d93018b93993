"""Differences to the FP32 wire, paired by seed, and what they say about an arm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from tests.convergence.arms import Arm


@dataclass(frozen=True, slots=True)
class Outcome:
    """One arm, trained with one seed.

    Attributes:
        seed: of weights and order.
        auc: on the held-out samples.
        normalized_entropy: likewise.
        seconds: wall time of the training on this machine.
    """

    seed: int
    auc: float
    normalized_entropy: float
    seconds: float


@dataclass(frozen=True)
class Verdict:
    """An arm beside the FP32 wire of the same optimizer.

    Attributes:
        arm: what was trained.
        outcomes: one for each seed.
        baseline: the FP32 wire with the same seeds.
    """

    arm: Arm
    outcomes: Sequence[Outcome]
    baseline: Sequence[Outcome]

    @property
    def auc_differences(self) -> list[float]:
        """Arm minus FP32 wire, seed by seed."""
        return [mine.auc - theirs.auc for mine, theirs in self._pairs()]

    @property
    def entropy_differences(self) -> list[float]:
        """Of the normalized entropy, arm minus FP32 wire, seed by seed."""
        return [mine.normalized_entropy - theirs.normalized_entropy for mine, theirs in self._pairs()]

    @property
    def within_gate(self) -> bool:
        """Whether the means are within the gate; the FP32 wire always is."""
        return self.arm.gate is None or self.arm.gate.holds(mean(self.auc_differences), mean(self.entropy_differences))

    @property
    def as_expected(self) -> bool:
        """A codec is within its gate, a control is not."""
        return self.arm.expected in (None, self.within_gate)

    def _pairs(self) -> list[tuple[Outcome, Outcome]]:
        by_seed = {outcome.seed: outcome for outcome in self.baseline}
        return [(mine, by_seed[mine.seed]) for mine in self.outcomes]
