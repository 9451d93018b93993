"""``range: {percentile: p}``: rows lose their outliers before they are encoded."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchrec_qcomm.codecs.parts.memory import Scratch
from torchrec_qcomm.codecs.parts.noise import Draw
from torchrec_qcomm.codecs.parts.ranges import Range
from torchrec_qcomm.codecs.rows import RowCodec
from torchrec_qcomm.codecs.spec import CodecSpec


@dataclass(frozen=True, slots=True)
class Clipped(RowCodec):
    """A codec over rows whose values are clamped to their own middle ``p`` percent.

    Formula: ``encode(clamp(x, low, high))`` with ``low`` and ``high`` the row's ``(100 - p) / 2``-th and ``(100 + p) / 2``-th
    percentile, interpolated linearly between its sorted values (Hyndman and Fan's type 7, numpy's default).

    Bytes of a row: those of the inner codec. Bound: that of the inner codec for the clamped row, plus what was clamped away.
    Bias: outliers shrink.

    Good for rows in which few values are much larger than the others: the steps for the others become finer. On rows without
    outliers it costs more than it gains, and the more so the fewer values a row has: of 4 values, 99 % clips both ends a
    little.

    Args:
        inner: the codec, whose range is that of each row.
        range: of kind ``percentile``.
    """

    inner: RowCodec
    range: Range

    @property
    def spec(self) -> CodecSpec:
        name, shown = self.inner.name, str(self.inner.spec)
        short = f"{shown[:-1]}, range={self.range})" if shown.endswith(")") else f"{shown}(range={self.range})"
        return CodecSpec(name, tuple(sorted([*self.inner.spec.params, ("range", self.range)])), short)

    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int:
        return self.inner.row_bytes(dim, dtype)

    @property
    def stochastic(self) -> bool:
        return self.inner.stochastic

    def _encode_rows(self, x: torch.Tensor, rows: torch.Tensor, scratch: Scratch, draw: Draw | None) -> None:
        clipped = torch.clamp(x, *self._ends(x), out=scratch.take("clipped", tuple(x.shape)))
        clipped.add_(x, alpha=0.0)  # an Inf becomes a NaN here, so that it does not become an end of the range
        self.inner._encode_rows(clipped, rows, scratch, draw)

    def _decode_rows(self, rows: torch.Tensor, x: torch.Tensor, scratch: Scratch) -> None:
        self.inner._decode_rows(rows, x, scratch)

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        x = values.detach().float()
        clipped = torch.clamp(x, *self._ends(x)).add_(x, alpha=0.0)
        return self.inner.error_bound(clipped) + (x - clipped).abs().mul_(1 + 2.0**-20)

    def _ends(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The two percentiles of every row, ``[..., 1]``."""
        position = (1 - self.range.numbers[0] / 100) / 2 * (x.shape[-1] - 1)
        first = int(position)
        weight, low, high = position - first, *(_outermost(x, first, largest) for largest in (False, True))
        return low[0] * (1 - weight) + low[1] * weight, high[0] * (1 - weight) + high[1] * weight


def _outermost(x: torch.Tensor, first: int, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """In every row, sorted from one end: the value at ``first`` and the next one, ``[..., 1]`` each. NaN may be anywhere."""
    if x.shape[-1] == 1:
        return x, x
    if first:
        found = torch.topk(x, first + 2, dim=-1, largest=largest).values
        return found[..., first : first + 1], found[..., first + 1 :]
    # The usual case: the outermost value, and the outermost of the others. torch.topk is slow on short rows.
    extreme, beyond = (torch.amax, -torch.inf) if largest else (torch.amin, torch.inf)
    outer = extreme(x, dim=-1, keepdim=True)
    same = torch.eq(x, outer, out=torch.empty_like(x))
    others = extreme(torch.where(same > 0, beyond, x), dim=-1, keepdim=True)
    return outer, torch.where(same.sum(dim=-1, keepdim=True) > 1, outer, others)
