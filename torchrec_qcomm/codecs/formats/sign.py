"""``sign``: one bit a value and the mean magnitude of the row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from torchrec_qcomm.codecs.checks import check_dim
from torchrec_qcomm.codecs.parts import scales
from torchrec_qcomm.codecs.parts.magnitudes import norm, pack_signs, unpack_signs
from torchrec_qcomm.codecs.parts.memory import Scratch
from torchrec_qcomm.codecs.parts.noise import Draw
from torchrec_qcomm.codecs.parts.packing import packed_bytes
from torchrec_qcomm.codecs.parts.row_values import bound_inputs, finish_bound, spoil
from torchrec_qcomm.codecs.rows import RowCodec


@dataclass(frozen=True, slots=True)
class Sign(RowCodec):
    """The scaled sign: of all codes with one bit a value and one scale, the one with the smallest squared error.

    Formula: ``scale = ||x||_1 / D`` (summed in FP64), rounded to the nearest that the format has; ``value = -scale`` if ``x <
    0``, else ``scale``. A zero counts as positive, but a row of zeros decodes to zeros.

    Bytes of a row (ceil(D / 8) + 2 with a BF16 scale): ``bits 0 to 7 | ... | scale``; bit 1 means negative, column 0 is in the
    lowest bit, the tail bits are 0.

    Error: ``||C(x) - x||^2 = (1 - ||x||_1^2 / (D ||x||_2^2)) ||x||^2``, plus ``D (scale - mean)^2`` for the rounding of the
    scale. That never exceeds ``||x||^2``; on Gaussian rows the relative L2 error is 0.60. Bound: ``| |x| - scale |``. Bias:
    yes, in every value: small ones grow to the mean, zeros too, and large ones shrink to it. Good for gradients of which the
    direction matters, and, where steps repeat, with error feedback. Without error feedback, in both directions of an exchange,
    it costs accuracy that a click model notices.

    Means beyond the format's largest number (BF16: 3.39e38, FP16: 65504) are sent as that number. Below its smallest normal
    number (BF16: 2**-126, FP16: 2**-14) the scale has an absolute error (2**-134, 2**-25), and rows far below it become zeros.
    A row with a NaN or Inf decodes to NaN in every column.

    Args:
        scale: ``bf16``, ``fp32``, ``fp16`` or ``e8m0`` (up to a third off the mean).

    Source: "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", arXiv 1901.09847.
    """

    scale: str = "bf16"
    name: ClassVar[str] = "sign"

    def __post_init__(self) -> None:
        scales.check_format(self.name, self.scale)

    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int:
        check_dim(self, dim)
        return packed_bytes(dim, 1) + scales.FORMATS[self.scale]

    def _scale(self, x: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        mean = norm(x, 1, scratch).div_(x.shape[-1]).float()
        return scales.nearest(spoil(mean, mean), self.scale)

    def _encode_rows(self, x: torch.Tensor, rows: torch.Tensor, scratch: Scratch, draw: Draw | None) -> None:
        nbytes = packed_bytes(x.shape[-1], 1)
        scales.write(self._scale(x, scratch), self.scale, rows[..., nbytes:], scratch)
        pack_signs(x, rows[..., :nbytes], scratch)

    def _decode_rows(self, rows: torch.Tensor, x: torch.Tensor, scratch: Scratch) -> None:
        nbytes = packed_bytes(x.shape[-1], 1)
        scale = scales.read(rows[..., nbytes:], self.scale, scratch)
        unpack_signs(rows[..., :nbytes], scale.neg(), scale, x, scratch)

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        x, low, high = bound_inputs(values)
        return finish_bound((x.abs() - self._scale(x.float(), Scratch(x.device))).abs(), low, high)
