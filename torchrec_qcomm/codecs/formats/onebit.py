"""``onebit``: one bit a value and two levels, the means of the negatives and of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from torchrec_qcomm.codecs.checks import check_dim
from torchrec_qcomm.codecs.parts.magnitudes import norm, pack_signs, unpack_signs
from torchrec_qcomm.codecs.parts.memory import Scratch, read_as, write_as
from torchrec_qcomm.codecs.parts.noise import Draw
from torchrec_qcomm.codecs.parts.packing import packed_bytes
from torchrec_qcomm.codecs.parts.row_values import bound_inputs, finish_bound
from torchrec_qcomm.codecs.rows import RowCodec

_LIMIT = torch.finfo(torch.bfloat16).max


@dataclass(frozen=True, slots=True)
class OneBit(RowCodec):
    """One bit a value and two levels, as in 1-bit SGD. Better than `sign` for rows that lean to one side, and 2 bytes larger.

    Formula: ``low = mean(x where x < 0)``, ``high = mean(x where x >= 0)``, summed in FP64 and rounded to the nearest BF16; a
    level without values is 0. ``value = low`` if ``x < 0``, else ``high``.

    Bytes of a row (ceil(D / 8) + 4): ``bits 0 to 7 | ... | low, 2 bytes | high, 2 bytes``, BF16, little-endian. A bit of 1
    means negative; column 0 is in the lowest bit, and the tail bits are 0.

    Error: ``||C(x) - x||^2 = ||x||^2 - n low^2 - p high^2`` with ``n`` negatives and ``p`` others, plus ``n`` and ``p`` times
    the squared roundings of the levels. But for these roundings it is never above ``||x||^2``. On Gaussian rows the relative L2
    error is 0.60. Bound: the distance of ``x`` to its level. Bias: yes, in every value, though the sum of a row stays the same
    but for the roundings; zeros become ``high``. Good and bad for the same rows as `sign`.

    Levels beyond 3.39e38 saturate there; below 2**-126 they have an absolute error, 2**-134. A row with a NaN or Inf decodes to
    NaN in every column.

    Source: F. Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of
    Speech DNNs", Interspeech 2014.
    """

    name: ClassVar[str] = "onebit"

    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int:
        check_dim(self, dim)
        return packed_bytes(dim, 1) + 4

    def _encode_rows(self, x: torch.Tensor, rows: torch.Tensor, scratch: Scratch, draw: Draw | None) -> None:
        nbytes = packed_bytes(x.shape[-1], 1)
        negative = pack_signs(x, rows[..., :nbytes], scratch)
        write_as(rows[..., nbytes:], _levels(x, negative, scratch), torch.bfloat16, scratch, "levels")

    def _decode_rows(self, rows: torch.Tensor, x: torch.Tensor, scratch: Scratch) -> None:
        nbytes = packed_bytes(x.shape[-1], 1)
        levels = read_as(rows[..., nbytes:], torch.bfloat16, scratch, "levels").float()
        unpack_signs(rows[..., :nbytes], levels[..., :1], levels[..., 1:], x, scratch)

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        x, low, high = bound_inputs(values)
        levels = _levels(x.float(), x < 0, Scratch(x.device)).double()
        return finish_bound((x - torch.where(x < 0, levels[..., :1], levels[..., 1:])).abs(), low, high)


def _levels(x: torch.Tensor, negative: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """Low and high level of every row: FP32 ``[..., 2]``, exact in BF16. ``negative`` says which values are negative.

    NaN for a row that is not finite.
    """
    side = scratch.take("side", tuple(x.shape))
    low = norm(
        torch.clamp(x, max=0.0, out=side), 1, scratch
    ).neg_()  # apart, since one side may be far below the other's roundings
    high = norm(torch.clamp(x, min=0.0, out=side), 1, scratch)
    count = negative.sum(dim=-1, keepdim=True)
    fault = (low + high) * 0.0
    low.div_(count.clamp(min=1)).add_(fault)
    high.div_((x.shape[-1] - count).clamp_(min=1)).add_(fault)
    return torch.cat([low, high], dim=-1).float().clamp_(-_LIMIT, _LIMIT).bfloat16().float()
