"""Rounding to nearest or at random: the parameter that uniform and float codecs share, and the arithmetic of the random kind.

A number between two levels ``a < b`` of a format becomes ``b`` with probability ``f = (x - a) / (b - a)``, and ``a`` otherwise.
So the mean is ``x``, and the variance is ``(b - a)**2 * f * (1 - f)``, a quarter of a squared step at most. A level has ``f =
0`` and stays. ``f`` is compared with multiples of 2**-24, so its probability is rounded to such a multiple.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchrec_qcomm.codecs.parts.memory import Scratch
from torchrec_qcomm.codecs.parts.noise import Draw
from torchrec_qcomm.codecs.rows import RowCodec
from torchrec_qcomm.errors import CodecError, describe

ROUNDINGS = ("nearest", "stochastic")

_EXPONENT = 0x7F800000
_SIGN = -(1 << 31)


@dataclass(frozen=True, slots=True)
class Rounded(RowCodec):
    """A codec that rounds in one of two ways. Only the codes differ between them, not the form of the bytes.

    Args:
        rounding: ``nearest`` or ``stochastic``; the latter needs noise.
    """

    rounding: str = "nearest"

    def __post_init__(self) -> None:
        if self.rounding not in ROUNDINGS:
            raise CodecError(describe(f"codec {self.name}, rounding", "unknown rounding", got=self.rounding, allowed=ROUNDINGS))

    @property
    def stochastic(self) -> bool:
        return self.rounding == "stochastic"

    @property
    def _steps(self) -> float:
        """The largest error of rounding, in steps between levels."""
        return 1.0 if self.stochastic else 0.5


def level_tolerance(low: torch.Tensor, high: torch.Tensor, inverse: torch.Tensor, steps: int) -> torch.Tensor:
    """How far from an integer ``(x - offset) * inverse`` can be if ``x`` is a level: in steps, ``[..., 1]``.

    The level itself was rounded, by up to half an FP32 step of the row's largest value. The roundings of difference, inverse,
    product and scale come on top.

    Args:
        low: the smallest value of every row, ``[..., 1]``.
        high: the largest one.
        inverse: one over the distance between levels.
        steps: the number of the largest level.
    """
    power = torch.maximum(low.abs(), high.abs()).view(torch.int32).bitwise_and_(_EXPONENT).view(torch.float32)
    return power.mul_(2.0**-24).mul_(inverse).add_(steps * 2.0**-22)


def to_integers(t: torch.Tensor, tolerance: torch.Tensor, draw: Draw, scratch: Scratch) -> torch.Tensor:
    """Round to one of the two integers around each number, at random and in place; NaN stays NaN.

    Args:
        t: FP32 ``[..., dim]``, contiguous.
        tolerance: ``[..., 1]``; a number that is no farther than this from an integer counts as that integer, and stays.
        draw: gives one number for each of ``t``.
        scratch: for intermediate results.
    """
    shape = tuple(t.shape)
    whole = torch.round(t, out=scratch.take("whole", shape))
    t.sub_(whole)
    # Comparisons into floats, since those into bool are not vectorised on a CPU.
    other = torch.abs(t, out=scratch.take("between", shape))
    t.mul_(torch.gt(other, tolerance, out=other))
    # With t in [-0.5, 0.5] and a draw in [0, 1): 1 if draw < t, -1 if draw >= 1 + t, else 0.
    return t.sub_(draw.uniform(shape, scratch)).ceil_().add_(whole)


def to_floats(x: torch.Tensor, mantissa: int, smallest: int, draw: Draw, scratch: Scratch) -> torch.Tensor:
    """Round to one of the two neighbours in a narrower float format, at random. Signs stay, also that of zero; NaN stays.

    All of it is exact: a number divided by its step has a whole part, which is its lower neighbour in steps.

    Args:
        x: FP32 ``[..., dim]``, contiguous, within the range of the format.
        mantissa: explicit bits of the format.
        smallest: exponent of its smallest normal number, at least -100; below that, steps do not shrink.
        draw: gives one number for each of ``x``.
        scratch: for intermediate results.

    Returns:
        FP32 in ``scratch``.
    """
    shape = tuple(x.shape)
    power = torch.bitwise_and(x.view(torch.int32), _EXPONENT, out=scratch.take("power", shape, torch.int32))
    power.clamp_(min=(smallest + 127) << 23)
    # One over a step, 2**(mantissa - exponent), by its bits.
    inverse = torch.mul(power, -1, out=scratch.take("inverse", shape, torch.int32)).add_((254 + mantissa) << 23)
    t = torch.abs(x, out=scratch.take("rounded", shape)).mul_(inverse.view(torch.float32))
    whole = torch.floor(t, out=scratch.take("whole", shape))
    t.sub_(whole)
    t = torch.lt(draw.uniform(shape, scratch), t, out=t).add_(whole)  # into floats, as above
    t.mul_(power.sub_(mantissa << 23).view(torch.float32))
    t.view(torch.int32).bitwise_or_(torch.bitwise_and(x.view(torch.int32), _SIGN, out=power))
    return t


def to_bfloats(x: torch.Tensor, draw: Draw, scratch: Scratch) -> torch.Tensor:
    """`to_floats` for BF16, which has the exponents of FP32: the lower 16 bits say how far a number is past its neighbour.

    Args:
        x: FP32 ``[..., dim]``, contiguous, within the range of BF16; no NaN.
        draw: gives one number for each of ``x``, of which 16 bits count.
        scratch: for intermediate results.

    Returns:
        FP32 in ``scratch``.
    """
    shape = tuple(x.shape)
    random = torch.mul(draw.uniform(shape, scratch), 2.0**16, out=scratch.take("rounded", shape))
    # 0xFFFF less 16 random bits carries into the upper half if the bits are below the lower half.
    carry = scratch.take("carry", shape, torch.int32).copy_(random).neg_().add_(0xFFFF)
    return carry.add_(x.view(torch.int32)).bitwise_and_(~0xFFFF).view(torch.float32)
