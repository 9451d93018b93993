"""``mxfp4`` and ``mxfp8``: OCP microscaling, a power-of-two scale for every 32 values of a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from torchrec_qcomm.codecs.checks import check_dim
from torchrec_qcomm.codecs.formats.lut import look_up
from torchrec_qcomm.codecs.parts import scales
from torchrec_qcomm.codecs.parts.memory import Scratch
from torchrec_qcomm.codecs.parts.noise import Draw
from torchrec_qcomm.codecs.parts.packing import pack, packed_bytes
from torchrec_qcomm.codecs.parts.row_values import bound_inputs, finish_bound, spoil
from torchrec_qcomm.codecs.rows import RowCodec
from torchrec_qcomm.errors import CodecError, describe

BLOCK = 32
ROUNDINGS = ("nearest", "stochastic")
SCALE_RULES = ("up", "floor")
_EXPONENT = 0x7F800000


def _blocks(*tensors: torch.Tensor) -> Iterator[tuple[slice, list[torch.Tensor]]]:
    """Views ``[..., blocks, values of a block]`` of tensors ``[..., dim]``: the whole blocks, then the short last one."""
    dim = tensors[0].shape[-1]
    whole = dim // BLOCK
    if whole:
        yield slice(whole), [t[..., : whole * BLOCK].unflatten(-1, (whole, BLOCK)) for t in tensors]
    if dim % BLOCK:
        yield slice(whole, whole + 1), [t[..., whole * BLOCK :].unsqueeze(-2) for t in tensors]


@dataclass(frozen=True, slots=True)
class _Mx(RowCodec):
    """The part that both formats share; a format adds its constants and how its codes are stored."""

    rounding: str = "nearest"
    scale_rule: str = "up"
    largest: ClassVar[float]  # the largest code value
    top: ClassVar[int]  # the exponent of `largest`
    mantissa: ClassVar[int]  # bits
    smallest: ClassVar[int]  # the exponent of the smallest normal code value

    def __post_init__(self) -> None:
        for field, value, allowed in (
            ("rounding", self.rounding, ROUNDINGS),
            ("scale_rule", self.scale_rule, SCALE_RULES),
        ):
            if value not in allowed:
                raise CodecError(describe(f"codec {self.name}, {field}", "unknown value", got=value, allowed=allowed))

    @property
    def stochastic(self) -> bool:
        return self.rounding == "stochastic"

    def _code_bytes(self, dim: int) -> int:
        raise NotImplementedError

    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int:
        check_dim(self, dim)
        return self._code_bytes(dim) - (-dim // BLOCK)

    def _scales(self, x: torch.Tensor) -> torch.Tensor:
        """``2**e`` of every block, ``[..., blocks]``: 0 for a block of zeros, NaN in the whole row if it is not finite.

        It works on the bits. With ``amax = 1.m * 2**E`` the rule ``floor`` gives ``e = E - top``. The rule ``up`` gives one
        more if ``1.m`` is above the mantissa of `largest`: adding what that mantissa lacks to a full one carries into the
        exponent field in just that case.
        """
        amax = torch.cat([torch.maximum(b.amax(-1), b.amin(-1).neg_()) for _, (b,) in _blocks(x)], dim=-1)
        bits = amax.view(torch.int32)
        if self.scale_rule == "up":
            bits = bits + (0x7FFFFF - int((self.largest / 2.0**self.top - 1) * 2**23))
        power = bits.bitwise_and(_EXPONENT).view(torch.float32)
        scale = power.clamp_(2.0 ** (self.top - 126), 2.0**127).mul_(2.0**-self.top)
        return spoil(scale.masked_fill_(amax == 0, 0.0), amax.amax(-1, keepdim=True))

    def _encode_rows(self, x: torch.Tensor, rows: torch.Tensor, scratch: Scratch, draw: Draw | None) -> None:
        width = self._code_bytes(x.shape[-1])
        scale = self._scales(x)
        scales.write(scale, "e8m0", rows[..., width:], scratch)
        inverse = scale.reciprocal().masked_fill_(scale == 0, 0.0)
        scaled = scratch.take("scaled", tuple(x.shape))
        for which, (values, target) in _blocks(x, scaled):
            torch.mul(values, inverse[..., which].unsqueeze(-1), out=target)
        self._encode(scaled.clamp_(-self.largest, self.largest), rows[..., :width], scratch, draw)

    def _decode_rows(self, rows: torch.Tensor, x: torch.Tensor, scratch: Scratch) -> None:
        width = self._code_bytes(x.shape[-1])
        scale = scales.read(rows[..., width:], "e8m0", scratch)
        x.copy_(self._decode(rows[..., :width], x.shape[-1], scratch))
        for which, (values,) in _blocks(x):
            values.mul_(scale[..., which].unsqueeze(-1))

    def _encode(self, scaled: torch.Tensor, codes: torch.Tensor, scratch: Scratch, draw: Draw | None) -> None:
        """Write the codes of ``scaled`` (overwritten), whose values lie within the largest."""
        raise NotImplementedError

    def _decode(self, codes: torch.Tensor, dim: int, scratch: Scratch) -> torch.Tensor:
        """The values of codes, ``[..., dim]``."""
        raise NotImplementedError

    def _steps(self, scaled: torch.Tensor, scratch: Scratch, draw: Draw | None) -> torch.Tensor:
        """Round ``scaled``, in place, to whole steps between codes; the power of two of each value, as FP32 bits.

        Afterwards ``scaled`` is a number of steps, below ``2**(mantissa + 1)``: times the power, times ``2**-mantissa``, it is
        the rounded value. Powers of two are exact, so no tie is missed.
        """
        bits = scaled.view(torch.int32)
        power = torch.bitwise_and(bits, _EXPONENT, out=scratch.take("power", tuple(scaled.shape), torch.int32))
        power.clamp_(min=(127 + self.smallest) << 23)
        inverse = torch.neg(power, out=scratch.take("inverse", tuple(scaled.shape), torch.int32))
        scaled.mul_(inverse.add_((254 + self.mantissa) << 23).view(torch.float32))
        if draw is None:
            scaled.round_()
            return power
        whole = torch.floor(scaled, out=inverse.view(torch.float32))
        rest = scaled.sub_(whole)
        up = scratch.take("up", tuple(scaled.shape), torch.bool)
        torch.lt(draw.uniform(tuple(scaled.shape), scratch), rest, out=up)
        torch.add(whole, up, out=scaled)
        return power

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        x, low, high = bound_inputs(values)
        scale = self._scales(x.float()).double().repeat_interleave(BLOCK, dim=-1)[..., : x.shape[-1]]
        power = torch.exp2(torch.frexp(x.abs())[1].double() - 1)
        step = torch.maximum(power, scale * 2.0**self.smallest) * 2.0**-self.mantissa
        excess = x.abs() - self.largest * scale
        bound = torch.where(excess > 0, excess, step if self.stochastic else step / 2)
        return finish_bound(torch.where(scale == 0, 0.0, bound), low, high)


@dataclass(frozen=True, slots=True)
class Mxfp4(_Mx):
    """OCP MXFP4: E2M1 codes (0, 0.5, 1, 1.5, 2, 3, 4, 6, and their negatives), one E8M0 scale for every 32 of a row.

    Formula: ``e = ceil(log2(block amax / 6))``, ``code = e2m1(x * 2**-e)``, ``value = code * 2**e``; nearest, ties to the even
    code, or stochastic between the two codes around x. The default ``scale_rule: up`` rounds ``e`` up, so nothing is clipped.
    OCP's own rule, ``scale_rule: floor``, has ``e = floor(log2(block amax)) - 2``, which clips values between 6 and 8 times
    ``2**e``.

    Bytes of a row (ceil(D / 2) + ceil(D / 32); 4.25 bits a value if D is a multiple of 32): ``codes 0 and 1 | codes 2 and 3 |
    ... | scale of block 0 | scale of block 1 | ...``. A code is ``sign, 2 bits of exponent, 1 of mantissa``. The even column is
    in the low nibble; with odd D the last high nibble is 0. A scale is ``e + 127``; 0 for a block of zeros. A short last block
    has no padding. OCP does not prescribe a layout. Here codes come first, so that a row is two arrays, however long its last
    block.

    Bound: nearest, half a step: ``2**-2`` of the power of two below ``|x|``, or ``2**(e - 2)`` for values below ``2**e``;
    stochastic, a whole step. There is no other rounding. A clipped value (``floor``, or beyond 2.55e38) errs by the excess over
    ``6 * 2**e``. ``e`` is at least -126: in blocks below 7e-38 the error is absolute, ``2**-128``. The relative error on normal
    rows is 0.1154; with ``floor`` it is 0.1150, since finer steps gain as much as clipping loses.

    Bias: nearest, none but at ties; stochastic with ``up``, none at all, and a variance of ``step**2 * f * (1 - f)``, where
    ``f`` is the place between the two codes; ``floor`` is biased towards zero where it clips. A row with a NaN or Inf decodes
    to NaN in every column: all its scale bytes are 255.

    Source: OCP Microscaling Formats (MX) v1.0. The codes are those of FBGEMM's MX4, which has its scale after each 16 bytes.

    Args:
        rounding: ``nearest`` or ``stochastic``.
        scale_rule: ``up`` or ``floor``.
    """

    name: ClassVar[str] = "mxfp4"
    largest: ClassVar[float] = 6.0
    top: ClassVar[int] = 2
    mantissa: ClassVar[int] = 1
    smallest: ClassVar[int] = 0
    values: ClassVar[tuple[float, ...]] = (
        0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0,
        -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
    )  # fmt: skip

    def _code_bytes(self, dim: int) -> int:
        return packed_bytes(dim, 4)

    def _encode(self, scaled: torch.Tensor, codes: torch.Tensor, scratch: Scratch, draw: Draw | None) -> None:
        dim, shape = scaled.shape[-1], tuple(scaled.shape)
        sign = torch.bitwise_right_shift(scaled.view(torch.int32), 28, out=scratch.take("sign", shape, torch.int32))
        power = self._steps(scaled, scratch, draw)
        # A code without its sign is the steps plus 2 for each power of two. So 4 steps and 2 of the next power have the same
        # code.
        code = power.bitwise_right_shift_(22).sub_(254)
        code.add_(scratch.take("inverse", shape, torch.int32).copy_(scaled.abs_()))
        room = scratch.take("codes", (*shape[:-1], 2 * codes.shape[-1]), torch.uint8)
        room[..., :dim].copy_(code.bitwise_or_(sign.bitwise_and_(8)))
        room[..., dim:].zero_()
        pack(room, 4, codes, scratch)

    def _decode(self, codes: torch.Tensor, dim: int, scratch: Scratch) -> torch.Tensor:
        return look_up(codes, self.values, 4, scratch)[..., :dim]


@dataclass(frozen=True, slots=True)
class Mxfp8(_Mx):
    """OCP MXFP8 with E4M3 codes, one E8M0 scale for every 32 values of a row.

    Formula: ``e = ceil(log2(block amax / 448))``, ``code = e4m3(x * 2**-e)``, ``value = code * 2**e``; nearest, ties to even,
    or stochastic between the two codes around x. ``scale_rule: floor`` is OCP's, ``e = floor(log2(block amax)) - 8``, and clips
    values between 448 and 512 times ``2**e``.

    Bytes of a row (D + ceil(D / 32); 8.25 bits a value if D is a multiple of 32): ``code 0 | code 1 | ... | scale of block 0 |
    scale of block 1 | ...``. A scale is ``e + 127``; 0 for a block of zeros. A short last block has no padding.

    Bound: nearest, half a step: ``2**-4`` of the power of two below ``|x|``, or ``2**(e - 10)`` for values below ``2**(e -
    6)``; stochastic, a whole step. There is no other rounding. A clipped value (``floor``, or beyond 2.97e38) errs by the
    excess over ``448 * 2**e``. ``e`` is at least -126: in blocks below 5e-36 the error is absolute, ``2**-136``.

    On normal rows it is as exact as ``fp8_e4m3``, with a relative error of 0.0265 (0.029 with ``floor``): a step is a part of
    the value, and finer scales do not change that. It is better where magnitudes differ by more than ``2**14`` inside a row:
    there a value loses precision only if it is that small next to the largest of its block, not of its row. Bias, variance,
    rows that are not finite, source and parameters: as `Mxfp4`.
    """

    name: ClassVar[str] = "mxfp8"
    largest: ClassVar[float] = 448.0
    top: ClassVar[int] = 8
    mantissa: ClassVar[int] = 3
    smallest: ClassVar[int] = -6

    def _code_bytes(self, dim: int) -> int:
        return dim

    def _encode(self, scaled: torch.Tensor, codes: torch.Tensor, scratch: Scratch, draw: Draw | None) -> None:
        if draw is not None:
            power = self._steps(scaled, scratch, draw)
            scaled.mul_(power.sub_(self.mantissa << 23).view(torch.float32))
        codes.view(torch.float8_e4m3fn).copy_(scaled)

    def _decode(self, codes: torch.Tensor, dim: int, scratch: Scratch) -> torch.Tensor:
        # s eeee mmm -> s 0eeee mmm0000000, FP16 with another bias: 2**-8 of the value. torch's own cast is not vectorised.
        wide = scratch.take("wide", tuple(codes.shape), torch.int16).copy_(codes.view(torch.int8))
        half = wide.bitwise_left_shift_(7).bitwise_and_(~0x4000).view(torch.float16)
        return scratch.take("values", tuple(codes.shape)).copy_(half).mul_(2.0**8)
