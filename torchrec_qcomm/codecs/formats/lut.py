"""``lut4`` and ``lut2``: levels from a table, in units of the row's root mean square."""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

import torch

from torchrec_qcomm.codecs.checks import check_dim
from torchrec_qcomm.codecs.parts import scales
from torchrec_qcomm.codecs.parts.memory import Scratch
from torchrec_qcomm.codecs.parts.noise import Draw
from torchrec_qcomm.codecs.parts.packing import pack, packed_bytes, unpack
from torchrec_qcomm.codecs.parts.row_values import bound_inputs, finish_bound, spoil
from torchrec_qcomm.codecs.rows import RowCodec
from torchrec_qcomm.codecs.spec import CodecSpec, spec_of
from torchrec_qcomm.errors import CodecError, describe

LARGEST_LEVEL = 1024.0
"""In units of the RMS. No value of a row of D values is above sqrt(D) times the row's root mean square."""

_INTEGER = 2.0**23  # added to a small whole number, it leaves that number in the lowest bits
_FLT_MAX = torch.finfo(torch.float32).max


def fp32(numbers: tuple[float, ...]) -> tuple[float, ...]:
    """The nearest FP32 numbers."""
    return struct.unpack(f"<{len(numbers)}f", struct.pack(f"<{len(numbers)}f", *numbers))


def _both_signs(*positive: float) -> tuple[float, ...]:
    return fp32((*(-level for level in reversed(positive)), *positive))


@lru_cache(maxsize=64)
def byte_table(levels: tuple[float, ...], bits: int, device: torch.device) -> torch.Tensor:
    """For each byte the values of its codes: ``[256]`` elements, each wide enough for all FP32 values of a byte."""
    every = torch.arange(256, dtype=torch.uint8).unsqueeze(-1)
    codes = unpack(every, bits, Scratch(every.device))
    values = torch.tensor(levels, dtype=torch.float32)[codes.int()]
    return values.view({4: torch.float64, 2: torch.complex128}[bits]).flatten().to(device)


def look_up(data: torch.Tensor, levels: tuple[float, ...], bits: int, scratch: Scratch) -> torch.Tensor:
    """The values of packed codes, FP32 ``[..., 8 / bits * bytes]``, contiguous."""
    table = byte_table(levels, bits, data.device)
    index = scratch.take("bytes", tuple(data.shape), torch.int32).copy_(data)
    found = scratch.take("found", (index.numel(),), table.dtype)
    return torch.index_select(table, 0, index.view(-1), out=found).view(torch.float32).view(*data.shape[:-1], -1)


@dataclass(frozen=True, slots=True)
class _Lut(RowCodec):
    """The part that both formats share; a format adds its default levels and the bits of a code."""

    levels: tuple[float, ...] = ()
    scale: str = "bf16"
    bits: ClassVar[int]

    def __post_init__(self) -> None:
        scales.check_format(self.name, self.scale, ("fp32", "bf16", "fp16"))
        object.__setattr__(self, "levels", check_levels(f"codec {self.name}, levels", self.levels, self.bits))

    @property
    def spec(self) -> CodecSpec:
        """The parameters hold all levels. Its text, which ranks compare, has the outermost levels and a hash of all."""
        spec = spec_of(self, self.name)
        digest = hashlib.blake2b(struct.pack(f"<{len(self.levels)}f", *self.levels), digest_size=4).hexdigest()
        brief = f"levels={self.levels[0]:.3g}..{self.levels[-1]:.3g} #{digest}"
        return replace(spec, short=str(spec).replace(f"levels={self.levels}", brief))

    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int:
        check_dim(self, dim)
        return packed_bytes(dim, self.bits) + scales.FORMATS[self.scale]

    def _scale(self, x: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        """The row's root mean square in the scale's format; 0 for a row of zeros, NaN for a row that is not finite.

        It is summed in FP64: there no square of an FP32 value overflows or vanishes, and the order of the sum makes no
        difference.
        """
        wide = scratch.take("wide", tuple(x.shape), torch.float64).copy_(x)
        rms = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).mul_(1 / math.sqrt(x.shape[-1])).float()
        return scales.rounded(spoil(rms, rms), self.scale)

    def _thresholds(self) -> tuple[float, ...]:
        return fp32(tuple((a + b) / 2 for a, b in pairwise(self.levels)))

    def _encode_rows(self, x: torch.Tensor, rows: torch.Tensor, scratch: Scratch, draw: Draw | None) -> None:
        dim, width = x.shape[-1], packed_bytes(x.shape[-1], self.bits)
        scale = self._scale(x, scratch)
        scales.write(scale, self.scale, rows[..., width:], scratch)
        units = torch.div(x, torch.where(scale == 0, 1.0, scale), out=scratch.take("units", tuple(x.shape)))
        room = scratch.take("codes", (*x.shape[:-1], width * 8 // self.bits), torch.uint8)
        room[..., dim:].zero_()
        thresholds = self._thresholds()
        if x.device.type == "cpu":
            # On a CPU, comparisons one after the other are vectorised if their results are floats; a search is not.
            count, above = scratch.take("count", tuple(x.shape)), scratch.take("above", tuple(x.shape))
            torch.gt(units, thresholds[0], out=count)
            for threshold in thresholds[1:]:
                count.add_(torch.gt(units, threshold, out=above))
            codes = count.add_(_INTEGER).view(torch.int32)
        else:
            codes = torch.bucketize(units, torch.tensor(thresholds, device=x.device), out_int32=True)
        room[..., :dim].copy_(codes)  # keeps the lowest byte
        pack(room, self.bits, rows[..., :width], scratch)

    def _decode_rows(self, rows: torch.Tensor, x: torch.Tensor, scratch: Scratch) -> None:
        dim, width = x.shape[-1], packed_bytes(x.shape[-1], self.bits)
        scale = scales.read(rows[..., width:], self.scale, scratch)
        values = look_up(rows[..., :width], self.levels, self.bits, scratch)
        torch.mul(values[..., :dim], scale, out=x).clamp_(-_FLT_MAX, _FLT_MAX)

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        x, low, high = bound_inputs(values)
        scale = self._scale(x.float(), Scratch(x.device)).double()
        units = x / torch.where(scale == 0, 1.0, scale)
        levels = torch.tensor(self.levels, dtype=torch.float64, device=x.device)
        above = torch.searchsorted(levels, units.contiguous()).clamp(1, len(levels) - 1)  # the upper end of the gap
        half_gap = (levels[above] - levels[above - 1]) / 2
        excess = torch.maximum(levels[0] - units, units - levels[-1])
        fp32_roundings = (x.abs() + scale * max(map(abs, self.levels))) * 2.0**-22 + 2.0**-149
        bound = torch.where(excess > 0, excess, half_gap) * scale + fp32_roundings
        return finish_bound(torch.where(scale == 0, x.abs(), bound), low, high)


@dataclass(frozen=True, slots=True)
class Lut4(_Lut):
    """16 levels from a table, times the row's root mean square: the best 4-bit levels for the rows that the table was made for.

    Formula: ``s = sqrt(mean(x**2))`` rounded up to the scale's format, ``code`` = the number of midpoints between neighbouring
    levels that are below ``x / s`` (so nearest, a tie to the lower level), ``value = levels[code] * s``.

    Levels: by default those of Lloyd and Max for a normal distribution, relative error 0.0975 on it (16 even levels: 0.107 at
    best). `learn_levels` and ``torchrec-qcomm learn-levels`` make them for a sample of real rows.

    Bytes of a row (ceil(D / 2) + 2; + 4 with an FP32 scale): ``codes 0 and 1 | codes 2 and 3 | ... | scale``. The even column
    is in the low nibble; with odd D the last high nibble is 0.

    Bound: half of the gap between the levels around x (default: from 0.128 s at zero to 0.332 s between the outermost). Beyond
    the outermost level, 2.73 s, x saturates there, and the bound is the excess. FP32 roundings come on top. Bias: a level is
    the mean of its cell, so there is none over a row that is distributed as the table expects; value by value, x moves to its
    level.

    Good for rows that look alike. Good for rows with outliers too: these are clipped, but cost no resolution elsewhere. Bad for
    rows with a few large values and many zeros: no default level is 0, so zeros become +-0.13 s (a row of zeros alone stays
    zero), and what is far out is clipped to 2.73 s. On Laplace rows of 128 values, learned levels err by 0.119, the default
    ones by 0.159 and `int4` by 0.131. In rows of 64 and fewer values `int4`, which follows each row's range, is better even
    than learned levels.

    Amplitudes: root mean squares above ``2**127`` count as ``2**127``. Below ``2**-126`` the error is absolute, ``2**-126``
    times half the gap. With an FP16 scale the range is 6.1e-5 to 65504 instead.

    Args:
        levels: 16 numbers, ascending, in units of the root mean square.
        scale: ``bf16``, ``fp32`` or ``fp16``. E8M0 would stretch the levels by up to 2 and is refused.

    Source: J. Max, "Quantizing for minimum distortion", IRE Trans. IT-6 (1960); S. Lloyd, "Least squares quantization in
    PCM", IEEE Trans. IT-28 (1982).
    """

    levels: tuple[float, ...] = _both_signs(
        0.12839502985117698, 0.38804829949037745, 0.6567591185326025, 0.9423404564871405,
        1.2562311973473856, 1.6180463860221022, 2.0690172265316042, 2.732589570995358,
    )  # fmt: skip
    name: ClassVar[str] = "lut4"
    bits: ClassVar[int] = 4


@dataclass(frozen=True, slots=True)
class Lut2(_Lut):
    """4 levels from a table, times the row's root mean square.

    Formula, bias and parameters: as `Lut4`, with 4 levels, by default +-0.453 and +-1.510: relative error 0.343 on normal rows.

    Bytes of a row (ceil(D / 4) + 2; + 4 with an FP32 scale): ``codes 0 to 3 | codes 4 to 7 | ... | scale``, the first column
    in the lowest bits, tail bits 0.

    Bound: half of the gap around x (default: 0.453 s at zero, 0.529 s beside it); beyond 1.510 s the excess. This is coarse:
    good for gradients at most, and there only where they are many and look alike. Zeros become +-0.453 s.
    """

    levels: tuple[float, ...] = _both_signs(0.45278003463649646, 1.510417608499104)
    name: ClassVar[str] = "lut2"
    bits: ClassVar[int] = 2


def check_levels(where: str, levels: object, bits: int) -> tuple[float, ...]:
    """The levels as a tuple of FP32 numbers.

    Raises:
        CodecError: they are not ``2**bits`` finite numbers of moderate size in strictly ascending order.
    """
    count = 1 << bits
    allowed = f"{count} ascending numbers from -{LARGEST_LEVEL:g} to {LARGEST_LEVEL:g}, in units of the row's RMS"
    if not isinstance(levels, list | tuple):
        raise CodecError(describe(where, "not a list", got=levels, allowed=allowed))
    for index, level in enumerate(levels):
        if isinstance(level, bool) or not isinstance(level, int | float):
            raise CodecError(describe(f"{where}.{index}", "not a number", got=level, allowed=allowed))
        if not abs(level) <= LARGEST_LEVEL:
            raise CodecError(describe(f"{where}.{index}", "not finite or too large", got=level, allowed=allowed))
    if len(levels) != count:
        raise CodecError(describe(where, "the wrong number of levels", got=len(levels), allowed=allowed))
    rounded = fp32(tuple(float(level) for level in levels))
    for index, (lower, upper) in enumerate(pairwise(rounded)):
        if lower >= upper:
            wrong = "the same level twice (in FP32)" if lower == upper else "not in ascending order"
            got = [levels[index], levels[index + 1]]
            raise CodecError(describe(f"{where}.{index + 1}", wrong, got=got, allowed=allowed))
    return rounded
