"""What the exchanges of one sharded collection remember from step to step."""

from __future__ import annotations

from torchrec_qcomm.codecs import Noise
from torchrec_qcomm.state.parts import SavedPart, Step
from torchrec_qcomm.state.ranges import ExchangeRanges


class ExchangeState:
    """The memory of one sharded collection.

    Args:
        seed: of the run's random streams.
        name: of the collection, in them.

    Attributes:
        step: counts forwards in training.
        ranges: of tables whose rows share one.
        training: whether the collection is in training mode.
    """

    def __init__(self, seed: int = 0, name: str = "") -> None:
        self.seed, self.name = seed, name
        self.step, self.ranges, self.training = Step(), ExchangeRanges(), True

    @property
    def parts(self) -> dict[str, SavedPart]:
        """What is saved, by its key."""
        return {"step": self.step, "ranges": self.ranges}

    def advance(self, training: bool) -> None:
        """Begin a forward."""
        self.training = training
        self.step.count += training

    def noise(self, rank: int, exchange: str) -> Noise:
        """The random stream of the current step, for an exchange at a global rank."""
        return Noise(self.seed, self.step.count, rank, f"{self.name}/{exchange}")
