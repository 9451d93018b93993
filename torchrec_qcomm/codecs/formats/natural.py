"""``natural``: sign and a power of two, chosen at random between the two neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from torchrec_qcomm.codecs.checks import check_dim
from torchrec_qcomm.codecs.parts import scales
from torchrec_qcomm.codecs.parts.magnitudes import amax, one_of
from torchrec_qcomm.codecs.parts.memory import Scratch
from torchrec_qcomm.codecs.parts.noise import Draw
from torchrec_qcomm.codecs.parts.packing import pack, packed_bytes, unpack
from torchrec_qcomm.codecs.parts.row_values import bound_inputs, finish_bound
from torchrec_qcomm.codecs.rows import RowCodec


@dataclass(frozen=True, slots=True)
class Natural(RowCodec):
    """Natural compression: sign and a power of two, at random between the two neighbours and right on average.

    Formula: ``scale = 2**ceil(log2(max |x|))``; the levels are 0 and ``scale * 2**(m - M)`` for ``m`` from 1 to ``M = 2**(bits
    - 1) - 1``: 127 or 7 powers of two down from the scale. A value between two levels ``a < |x| < b`` becomes ``b`` with
    probability ``(|x| - a) / (b - a)``, else ``a``; below the smallest power, ``a`` is 0.

    The exponents are relative to the row's maximum. FP32 has 254 exponents, more than 7 bits can name, so absolute exponents
    would lose some amplitudes. With relative ones a row of any amplitude keeps 126 octaves (2**126 = 8.5e37) below its maximum,
    for one byte. At 8 bits, underflow then hardly occurs.

    Bytes of a row (ceil(D * bits / 8) + 1): ``codes | ... | log2(scale) + 127``. A code is ``m``, or 0 for zero, with the sign
    in the highest of its bits; at 4 bits the even column is in the low nibble, and with odd D the last high nibble is 0. The
    last byte is 0 for a row of zeros and 255 for a row with a NaN or Inf, which decodes to NaN in every column.

    Bias: none; levels, zero among them, never change. Variance of a value: ``(|x| - a) (b - |x|)``, so at most ``x^2 / 8``;
    below the smallest power ``L = scale * 2**(1 - M)``, ``|x| (L - |x|)``, at most ``L^2 / 4``. Of a row: at most ``||x||^2 / 8
    + n L^2 / 4`` with ``n`` values below ``L``; at 4 bits ``L`` is at most ``max |x| / 32``. On Gaussian rows the relative L2
    error is about 0.29. Bound: the distance to the further neighbour; below ``|x|``, or ``L``.

    Good where gradients must be unbiased and have a known small variance. For the same bytes `int8` and `int4` are far more
    exact. Values beyond 2**127 saturate. A scale is at least 2**-126.

    Args:
        bits: 8 or 4.

    Source: "Natural Compression for Distributed Deep Learning", arXiv 1905.10988.
    """

    bits: int = 8
    name: ClassVar[str] = "natural"

    def __post_init__(self) -> None:
        one_of(self.name, "bits", self.bits, (8, 4))

    @property
    def stochastic(self) -> bool:
        return True

    @property
    def powers(self) -> int:
        """How many powers of two are levels."""
        return 2 ** (self.bits - 1) - 1

    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int:
        check_dim(self, dim)
        return packed_bytes(dim, self.bits) + 1

    def _encode_rows(self, x: torch.Tensor, rows: torch.Tensor, scratch: Scratch, draw: Draw | None) -> None:
        assert draw is not None
        dim, shape, nbytes = x.shape[-1], tuple(x.shape), packed_bytes(x.shape[-1], self.bits)
        scale = scales.rounded(amax(x, scratch), "e8m0")
        scales.write(scale, "e8m0", rows[..., nbytes:], scratch)
        inverse = torch.where(scale == 0, 1.0, scale).reciprocal()
        size = torch.abs(x, out=scratch.take("size", shape)).mul_(inverse)  # up to 1
        # Above the smallest power L, the mantissa says how far a value is on the way to the next power; below L, the mantissa
        # of L + size says it. So add L there and double the others: then code 0 has the exponent field of L, and code 1 the
        # next.
        smallest = 2.0 ** (1 - self.powers)
        lifted = torch.add(size, smallest, out=scratch.take("lifted", shape))
        bits = torch.maximum(size.mul_(2.0), lifted, out=size).view(torch.int32)
        # The sum of a mantissa and 23 random bits carries into the exponent with just the right probability.
        bits.add_(draw.bits(shape, scratch).bitwise_and_(0x7FFFFF)).bitwise_right_shift_(23)
        bits.sub_(128 - self.powers).clamp_(0, self.powers)  # the clamp is for values that saturate, and for NaN
        codes = scratch.take("codes", (*shape[:-1], nbytes * 8 // self.bits), torch.uint8)
        codes[..., :dim].copy_(bits)
        negative = torch.lt(x, 0.0, out=scratch.take("negative", shape, torch.bool)).view(torch.uint8)
        codes[..., :dim].add_(negative, alpha=1 << self.bits - 1)
        codes[..., dim:].zero_()
        pack(codes, self.bits, rows[..., :nbytes], scratch)

    def _decode_rows(self, rows: torch.Tensor, x: torch.Tensor, scratch: Scratch) -> None:
        nbytes = packed_bytes(x.shape[-1], self.bits)
        scale = scales.read(rows[..., nbytes:], "e8m0", scratch)
        codes = unpack(rows[..., :nbytes], self.bits, scratch)[..., : x.shape[-1]]
        # The code's m becomes an exponent field, which means 2**(m - 127) or 0; its highest bit becomes the sign.
        bits = scratch.take("bits", tuple(x.shape), torch.int32).copy_(codes)
        sign = scratch.take("sign", tuple(x.shape), torch.int32)
        torch.bitwise_left_shift(bits, 32 - self.bits, out=sign).bitwise_and_(-(1 << 31))
        values = bits.bitwise_and_(self.powers).bitwise_left_shift_(23).bitwise_or_(sign).view(torch.float32)
        if self.powers != 127:
            values.mul_(2.0 ** (127 - self.powers))
        torch.mul(values, scale, out=x)

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        x, low, high = bound_inputs(values)
        size = x.abs()
        scale = scales.rounded(amax(x.float(), Scratch(x.device)), "e8m0").double()
        smallest = scale * 2.0 ** (1 - self.powers)
        power = torch.exp2(torch.frexp(size)[1].double() - 1)  # at or below the value
        below = torch.where(size < smallest, 0.0, power)
        above = torch.where(size < smallest, smallest, 2 * power)
        between = torch.where(size == below, 0.0, torch.maximum(size - below, above - size))
        return finish_bound(torch.where(size >= scale, size - scale, between), low, high)
