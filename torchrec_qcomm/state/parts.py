"""What every part of a state can do; and the part that counts steps."""

from __future__ import annotations

from typing import Any, Protocol

from torchrec_qcomm.errors import ShardingError, describe


class SavedPart(Protocol):
    """One thing that the exchanges of a collection remember. All parts are saved, checked, loaded and reset alike."""

    def state(self) -> Any:
        """What is saved: plain values and copies of tensors. ``None``: there is nothing to save."""
        ...

    def check(self, where: str, state: Any) -> None:
        """Raise ``ShardingError`` unless `load` can take ``state``; ``where`` is put before the message."""
        ...

    def load(self, state: Any) -> None:
        """Go on from what `state` returned."""
        ...

    def reset(self) -> None:
        """Begin anew."""
        ...


class Step:
    """Forwards in training mode so far, in ``count``; evaluation does not count. The same on all ranks."""

    def __init__(self) -> None:
        self.count = 0

    def state(self) -> int:
        return self.count

    def check(self, where: str, state: Any) -> None:
        if isinstance(state, bool) or not isinstance(state, int) or state < 0:
            raise ShardingError(describe(where, "not a state", got={"step": state}, allowed="step: 0 or more"))

    def load(self, state: int) -> None:
        self.count = state

    def reset(self) -> None:
        self.count = 0
