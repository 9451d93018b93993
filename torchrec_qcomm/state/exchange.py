"""What the exchanges of a collection remember from step to step; saved apart from TorchRec's state."""

from __future__ import annotations

from collections.abc import Iterable

from torchrec_qcomm.codecs import Noise
from torchrec_qcomm.state.running_ranges import RunningRanges, Site


class ExchangeState:
    """The memory of one sharded collection.

    Args:
        seed: of the run's random streams.
        name: of the collection, in them.

    Attributes:
        step: forwards in training mode so far; evaluation does not count.
        training: whether the collection is in training mode.
        ranges: by exchange and direction, the ranges of tables whose rows share one.
    """

    def __init__(self, seed: int = 0, name: str = "") -> None:
        self.seed, self.name = seed, name
        self.step, self.training = 0, True
        self.ranges: dict[str, RunningRanges] = {}
        self.rank = 0

    def advance(self, training: bool) -> None:
        """Begin a forward."""
        self.training = training
        self.step += training

    def noise(self, rank: int, exchange: str) -> Noise:
        """The random stream of the current step, for an exchange at a global rank."""
        return Noise(self.seed, self.step, rank, f"{self.name}/{exchange}")

    def ranges_of(self, exchange: str, rank: int, sites: Iterable[Site]) -> RunningRanges | None:
        """The ranges of an exchange and direction at a global rank; what is already known of the same tables is kept.

        ``None``, and nothing kept, where there is no table: the rank may have had some before dynamic resharding.
        """
        self.rank = rank
        known = self.ranges.pop(exchange, None)
        if not (made := RunningRanges(sites)).sites:
            return None
        if known is not None:
            made.adopt(known)
        self.ranges[exchange] = made
        return made
