"""The running ranges of a collection's exchanges at one rank, as one part of its state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torchrec_qcomm.errors import ShardingError, describe
from torchrec_qcomm.state.running_ranges import ANEW, RangedTable, RunningRanges


class ExchangeRanges:
    """Running ranges by exchange and direction; empty if no table needs any.

    Every rank sends other values and has ranges of its own. They are saved under ``"rank 3"``; those of other ranks are passed
    over.
    """

    def __init__(self) -> None:
        self._rank = 0
        self._found: dict[str, RunningRanges] = {}

    def of(self, exchange: str, rank: int, tables: Iterable[RangedTable]) -> RunningRanges | None:
        """The ranges of an exchange and direction at a global rank; what is already known of the same tables goes on.

        ``None``, and nothing is kept, where there is no table: the rank may have had some before dynamic resharding.
        """
        self._rank = rank
        known = self._found.pop(exchange, None)
        if not (made := RunningRanges(tables)).tables:
            return None
        if known is not None:
            made.adopt(known)
        self._found[exchange] = made
        return made

    def state(self) -> dict[str, Any] | None:
        if not self._found:
            return None
        return {f"rank {self._rank}": {name: each.state() for name, each in self._found.items()}}

    def check(self, where: str, state: Any) -> None:
        where, rank = f"{where}: ranges", f"rank {self._rank}"
        if not isinstance(state, Mapping) or (rank not in state and self._found):
            got = sorted(state) if isinstance(state, Mapping) else state
            raise ShardingError(describe(where, f"nothing of {rank}", got=got, allowed=[rank], todo=ANEW))
        mine = state.get(rank, {})
        if not isinstance(mine, Mapping) or mine.keys() != self._found.keys():
            wrong, got = "of another plan: not the same exchanges", sorted(mine) if isinstance(mine, Mapping) else mine
            raise ShardingError(describe(where, wrong, got=got, allowed=self._found or "none", todo=ANEW))
        for name, ranges in self._found.items():
            ranges.check(f"{where}, {name!r}", mine[name])

    def load(self, state: Mapping[str, Any]) -> None:
        mine = state.get(f"rank {self._rank}", {})
        for name, ranges in self._found.items():
            ranges.load(mine[name])

    def reset(self) -> None:
        for ranges in self._found.values():
            ranges.reset()
