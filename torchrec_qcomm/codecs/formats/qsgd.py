"""``qsgd``: even levels between plus and minus the row's norm, chosen at random between the two neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from torchrec_qcomm.codecs.checks import check_dim
from torchrec_qcomm.codecs.parts import scales
from torchrec_qcomm.codecs.parts.magnitudes import amax, norm, one_of, upward
from torchrec_qcomm.codecs.parts.memory import Scratch
from torchrec_qcomm.codecs.parts.noise import Draw
from torchrec_qcomm.codecs.parts.packing import pack, packed_bytes, unpack
from torchrec_qcomm.codecs.parts.row_values import bound_inputs, finish_bound
from torchrec_qcomm.codecs.rows import RowCodec


@dataclass(frozen=True, slots=True)
class Qsgd(RowCodec):
    """QSGD: sign and one of ``s`` even levels, at random between the two neighbours and right on average.

    Formula: ``s = 2**(bits - 1) - 1`` levels (1, 7, 127), ``scale = norm / s`` rounded up to the scale's format, ``t = x /
    scale``, ``q = floor(t)``, and one more with probability ``t - floor(t)``; ``value = q * scale``. The paper's value is norm
    times level over s. Here the step is rounded and not the norm, so that every level is an exact FP32.

    Bytes of a row (ceil(D * bits / 8) + 2 with a BF16 scale): ``codes | ... | scale``. A code is ``q + s``, one of ``2 s + 1``
    symbols for sign and level. A byte holds several codes: column 0 is in the lowest bits, and the tail bits are 0.

    Bias: none (probabilities are multiples of 2**-24, rounded up). Zeros and other levels never change. Variance of a value:
    ``scale^2 f (1 - f)`` with ``f = t - floor(t)``, so at most ``scale^2 / 4``. Of a row, with ``l2``: at most ``min(D / s^2,
    sqrt(D) / s) ||x||^2``, times ``(s scale / norm)^2`` (below 1.016) for the rounding of the scale; with ``max``: at most ``D
    (scale / 2)^2``. Bound: the distance to the further neighbour, below ``scale``.

    ``norm: l2`` is the paper's. Its levels reach as far as the 2-norm, although no value of a long row comes near it. On
    Gaussian rows of 128 values its relative L2 error is 2.8 at 2 bits, 0.66 at 4 and 0.036 at 8; that of ``max`` is 1.12 (as
    `ternary`), 0.17 and 0.009. **So for one row, 2 bits are worse than sending nothing, though right on average.** Use them
    only where many rows are summed before they count, and never in a forward pass. Use ``max`` unless a theorem needs ``l2``.

    ``scale`` is from 2**-126 to ``2**(129 - bits)`` (FP16: 2**-14 to 65504). Values beyond ``s`` times the largest (1.7e38,
    2.9e38, 3.3e38) saturate. Rows below the smallest are right on average, with an error up to 2**-126. A row with a NaN or Inf
    decodes to NaN in every column.

    Args:
        bits: 2, 4 or 8.
        norm: ``l2`` or ``max``.
        scale: ``bf16``, ``fp16`` or ``e8m0``.

    Source: "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", arXiv 1610.02132; its experiments use
    the maximum.
    """

    bits: int = 4
    norm: str = "l2"
    scale: str = "bf16"
    name: ClassVar[str] = "qsgd"

    def __post_init__(self) -> None:
        one_of(self.name, "bits", self.bits, (2, 4, 8))
        one_of(self.name, "norm", self.norm, ("l2", "max"))
        scales.check_format(self.name, self.scale, ("bf16", "fp16", "e8m0"))

    @property
    def stochastic(self) -> bool:
        return True

    @property
    def levels(self) -> int:
        """The levels above zero."""
        return 2 ** (self.bits - 1) - 1

    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int:
        check_dim(self, dim)
        return packed_bytes(dim, self.bits) + scales.FORMATS[self.scale]

    def _scale(self, x: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        size = norm(x, 2, scratch) if self.norm == "l2" else amax(x, scratch).double()
        fault = size * 0.0
        # No level may overflow: (2**(bits - 1) - 1) * 2**(129 - bits) < 2**128.
        limit = 2.0 ** (129 - self.bits)
        return scales.rounded(upward((size / self.levels).clamp_(max=limit).add_(fault)), self.scale).clamp_(max=limit)

    def _encode_rows(self, x: torch.Tensor, rows: torch.Tensor, scratch: Scratch, draw: Draw | None) -> None:
        assert draw is not None
        dim, shape, nbytes = x.shape[-1], tuple(x.shape), packed_bytes(x.shape[-1], self.bits)
        scale = self._scale(x, scratch)
        scales.write(scale, self.scale, rows[..., nbytes:], scratch)
        steps = scratch.take("steps", shape)
        # Division, not the reciprocal: the quotient of a level is then exact. Rows of zeros are divided by 1; a NaN becomes 0.
        torch.div(x, torch.where(scale == 0, 1.0, scale), out=steps).clamp_(-self.levels, self.levels).nan_to_num_(0.0)
        whole = torch.floor(steps, out=scratch.take("whole", shape))
        up = scratch.take("up", shape, torch.bool)
        torch.gt(steps.sub_(whole), draw.uniform(shape, scratch), out=up)
        codes = scratch.take("codes", (*shape[:-1], nbytes * 8 // self.bits), torch.uint8)
        codes[..., :dim].copy_(whole.add_(self.levels)).add_(up.view(torch.uint8))
        codes[..., dim:].zero_()
        pack(codes, self.bits, rows[..., :nbytes], scratch)

    def _decode_rows(self, rows: torch.Tensor, x: torch.Tensor, scratch: Scratch) -> None:
        nbytes = packed_bytes(x.shape[-1], self.bits)
        scale = scales.read(rows[..., nbytes:], self.scale, scratch)
        x.copy_(unpack(rows[..., :nbytes], self.bits, scratch)[..., : x.shape[-1]]).sub_(self.levels).mul_(scale)

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        x, low, high = bound_inputs(values)
        scale, size = self._scale(x.float(), Scratch(x.device)).double(), x.abs()
        below = (size / scale).floor() * scale
        between = torch.where(size == below, 0.0, torch.maximum(size - below, below + scale - size))
        top = self.levels * scale
        return finish_bound(torch.where(size >= top, size - top, between), low, high)
