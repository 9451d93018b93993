"""Statistics of what a rank sends, table by table, and the ranges that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

import torch

from torchrec_qcomm.codecs.formats.one_range import OneRange, range_headers
from torchrec_qcomm.collectives import RangedBlocks
from torchrec_qcomm.errors import ShardingError, describe

_AVERAGES = ("minimum", "maximum", "mean", "std")
_COUNTS = ("updates", "values", "saturated", "not finite")
_STATIC_DECAY = 0.99
"""The weight of the past in the statistics of a static range, which are kept to look at."""

ANEW = "Leave `ranges` out to begin anew."

RangedTable = tuple[str, OneRange]
"""A table whose rows share a range, and its codec."""


class RunningRanges:
    """The ranges of one output dist in one direction, at its sender.

    In every training step that sends values of a table, its moving averages become ``decay * old + (1 - decay) * now`` of the
    step's minimum, maximum, mean and standard deviation (in the first, ``now``), over all that goes to any rank; a value that
    is not finite counts as zero. A step with nothing but zeros is left out: they arrive as zeros in any range, and a table
    without ids, or a gradient that overflowed, would shrink it. The new averages are in force at once. Evaluation uses them and
    leaves them as they are. All of it stays on the device: nothing waits for a number.

    Args:
        tables: each with its codec; a table with two codecs, on two links, comes twice.
    """

    def __init__(self, tables: Iterable[RangedTable]) -> None:
        self.tables = sorted(tables, key=_name)
        self._index = {table: i for i, table in enumerate(self.tables)}
        self._averages = torch.zeros(len(self.tables), len(_AVERAGES), dtype=torch.float64)
        self._counts = torch.zeros(len(self.tables), len(_COUNTS), dtype=torch.int64)
        ranges = [codec.range for _, codec in self.tables]
        static = [(range.kind == "static", *range.numbers) if range.kind == "static" else (False, 0.0, 0.0) for range in ranges]
        self._static = torch.tensor(static, dtype=torch.float64).view(-1, 3)
        self._levels = torch.tensor([float(codec.levels) for _, codec in self.tables], dtype=torch.float32)
        self._numbers = torch.arange(len(self.tables)).split(1)
        self._decay = torch.tensor(
            [_STATIC_DECAY if range.kind == "static" else range.numbers[0] for range in ranges], dtype=torch.float64
        ).view(-1, 1)

    def range_headers(self, ranged: RangedBlocks, training: bool) -> list[torch.Tensor]:
        """The range headers of a message, as `collectives.pack` asks for them.

        Args:
            ranged: all blocks of the message that need one.
            training: whether the statistics take notice of it.
        """
        self._move(ranged[0][1].device)
        sent = [(table, block.codec) for block, _ in ranged for table in block.tables]
        # Made on the device: a list of numbers would have to be waited for.
        index = torch.cat([self._numbers[self._index[each]] for each in sent])  # type: ignore[index]
        clean = [torch.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0).float() for _, rows in ranged]
        now, values = self._of_step(clean, index)
        old, seen, tells = self._averages, self._counts[:, :1] > 0, (now[:, :1] < 0) | (now[:, 1:2] > 0)
        current = torch.where(seen, self._decay * old + (1 - self._decay) * now, now) if training else now
        # A table of which no value was sent keeps its averages; so does one in evaluation, once it has some.
        current = torch.where(tells if training else ~seen, current, old)
        is_static = self._static[:, 0] > 0
        low, high = (torch.where(is_static, self._static[:, 1 + i], current[:, i]).float() for i in (0, 1))
        found = list(range_headers(low, high, self._levels)[index].split([rows.shape[1] for rows in clean]))
        if training:
            self._averages.copy_(current)
            self._counts[:, :1] += tells
            self._counts[:, 1:2] += values.long()
            self._count(ranged, clean, found, index)
        return found

    def _of_step(self, clean: list[torch.Tensor], index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The statistics of a message ``[tables, 4]``, and how many values of each table are sent ``[tables, 1]``."""
        low, high = (torch.cat([end(rows, dim=(0, 2)) for rows in clean]).double() for end in (torch.amin, torch.amax))
        total, squares = torch.cat([_moments(rows) for rows in clean], dim=1)
        numbers = torch.cat([rows.new_full((rows.shape[1],), rows[:, 0].numel(), dtype=torch.float64) for rows in clean])
        zeros = low.new_zeros(len(self.tables))
        values = zeros.index_add(0, index, numbers)
        divisor = values.clamp(min=1)
        mean = zeros.index_add(0, index, total) / divisor
        std = (zeros.index_add(0, index, squares) / divisor - mean.square()).clamp_(min=0).sqrt_()
        minimum = zeros.scatter_reduce(0, index, low, "amin", include_self=False)
        maximum = zeros.scatter_reduce(0, index, high, "amax", include_self=False)
        return torch.stack([minimum, maximum, mean, std], dim=1), values.unsqueeze(1)

    def _count(self, ranged: RangedBlocks, clean: list[torch.Tensor], told: list[torch.Tensor], index: torch.Tensor) -> None:
        beyond, broken = [], []
        for (block, rows), finite, header in zip(ranged, clean, told, strict=True):
            low, high = block.codec.within(header).ends()  # type: ignore[attr-defined]
            # Comparisons into floats, since those into bool are not vectorised on a CPU.
            which = torch.lt(finite, low, out=torch.empty_like(finite))
            beyond.append(_sum(which) + _sum(torch.gt(finite, high, out=which)))
            broken.append(_sum(torch.ne(finite, rows, out=which)))
        for column, found in ((2, beyond), (3, broken)):
            self._counts[:, column].index_add_(0, index, torch.cat(found).long())

    def _move(self, device: torch.device) -> None:
        if self._counts.device == device:
            return
        for name in ("_averages", "_counts", "_static", "_levels", "_decay"):
            setattr(self, name, getattr(self, name).to(device))
        self._numbers = torch.arange(len(self.tables), device=device).split(1)

    def adopt(self, other: RunningRanges) -> None:
        """Take over the statistics of the tables that both have: after dynamic resharding, or a change of precision."""
        self._move(other._counts.device)
        for table in self._index.keys() & other._index.keys():
            self._averages[self._index[table]] = other._averages[other._index[table]]
            self._counts[self._index[table]] = other._counts[other._index[table]]

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """``{"table codec": {statistic: tensor}}``: copies, scalars on the device."""
        averages, counts = self._averages.clone(), self._counts.clone()
        return {
            _name(table): dict(zip(_AVERAGES, averages[i], strict=True)) | dict(zip(_COUNTS, counts[i], strict=True))
            for i, table in enumerate(self.tables)
        }

    def check(self, where: str, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise ``ShardingError`` unless `load` can take ``state``."""
        names = [_name(table) for table in self.tables]
        if not isinstance(state, Mapping) or state.keys() != set(names):
            wrong, got = "the statistics of other tables or codecs", sorted(state) if isinstance(state, Mapping) else state
            raise ShardingError(describe(where, wrong, got=got, allowed=names, todo=ANEW))
        for name, saved in state.items():
            if not _are_statistics(saved):
                allowed = [*_AVERAGES, *_COUNTS]
                raise ShardingError(describe(f"{where}, {name!r}", "not statistics", got=saved, allowed=allowed))

    def load(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on from what `state` returned."""
        for i, table in enumerate(self.tables):
            saved = state[_name(table)]
            for kept, names in ((self._averages, _AVERAGES), (self._counts, _COUNTS)):
                for column, name in enumerate(names):
                    kept[i, column] = saved[name]

    def reset(self) -> None:
        """Begin anew."""
        self._averages.zero_()
        self._counts.zero_()


def _sum(rows: torch.Tensor) -> torch.Tensor:
    """Of ``[rows, columns, dim]`` those of each column, FP64."""
    return rows.sum(dim=2).sum(dim=0, dtype=torch.float64)


def _moments(rows: torch.Tensor) -> torch.Tensor:
    """The sums of values and squares ``[2, columns]``, in FP64: large FP32 would overflow, which no average forgets."""
    wide = rows.double()
    return torch.stack([_sum(wide), _sum(wide.square_())])


def _are_statistics(saved: object) -> bool:
    """Whether it is finite numbers by the names that they need."""
    if not isinstance(saved, Mapping) or saved.keys() != {*_AVERAGES, *_COUNTS}:
        return False
    try:
        return all(isfinite(float(number)) for number in saved.values())
    except (TypeError, ValueError, RuntimeError):  # not a number, or several
        return False


def _name(table: RangedTable) -> str:
    return f"{table[0]} {table[1].spec}"
