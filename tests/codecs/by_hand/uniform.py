"""Uniform and float codecs in exact rational arithmetic, a few lines each, and their bytes worked out by hand.

An oracle takes a row and, for stochastic rounding, a number in [0, 1) for each of its values; without these it rounds to
nearest.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction

from torchrec_qcomm.codecs import CodecLike

Uniforms = list[float] | None
Oracle = Callable[..., bytes]


def pick(value: Fraction, uniform: float | None) -> int:
    if uniform is None:
        return round(value)  # Python rounds ties to even
    return math.floor(value) + (uniform < value - math.floor(value))


def picks(values: list[Fraction], uniforms: Uniforms) -> list[int]:
    return [pick(v, u) for v, u in zip(values, uniforms or [None] * len(values), strict=True)]


def floats(row: list[float], uniforms: Uniforms, mantissa: int, smallest: int, sign: int) -> list[int]:
    """Codes in a binary float with that many mantissa bits, smallest exponent and sign bit; magnitudes are rounded."""
    exponents = [max(math.frexp(v)[1] - 1, smallest) for v in row]
    steps = [abs(Fraction(v)) / Fraction(2) ** (e - mantissa) for v, e in zip(row, exponents, strict=True)]
    codes = zip(row, exponents, picks(steps, uniforms), strict=True)
    return [((e - smallest) << mantissa) + n | (sign if v < 0 else 0) for v, e, n in codes]


def fp16(row: list[float], uniforms: Uniforms = None) -> bytes:
    return b"".join(struct.pack("<H", code) for code in floats(row, uniforms, 10, -14, 0x8000))


def bf16(row: list[float], uniforms: Uniforms = None) -> bytes:
    return b"".join(struct.pack("<H", code) for code in floats(row, uniforms, 7, -126, 0x8000))


def fp8(mantissa: int, smallest: int, largest: float) -> Oracle:
    def encode(row: list[float], uniforms: Uniforms = None) -> bytes:
        exponent = -200
        while max(map(abs, row)) > math.ldexp(largest, exponent):
            exponent += 1
        scaled = [math.ldexp(v, -exponent) for v in row]
        return bytes([*floats(scaled, uniforms, mantissa, smallest, 0x80), exponent + 127])

    return encode


def int8(row: list[float], uniforms: Uniforms = None) -> bytes:
    low, high = Fraction(min(row)), Fraction(max(row))
    codes = picks([(Fraction(v) - low) * 255 / (high - low) for v in row], uniforms)
    return bytes(codes) + struct.pack("<ff", (high - low) / 255, low)


def to_bf16(value: Fraction, direction: Callable[[Fraction], int]) -> Fraction:
    exponent = math.frexp(float(value))[1] - 8
    return direction(value / Fraction(2) ** exponent) * Fraction(2) ** exponent


def bf16_bytes(*values: Fraction) -> bytes:
    return b"".join(struct.pack("<f", float(v))[2:] for v in values)


def int4(row: list[float], uniforms: Uniforms = None) -> bytes:
    low = to_bf16(Fraction(min(row)), math.floor)
    scale = to_bf16((Fraction(max(row)) - low) / 15, math.ceil)
    codes = picks([(Fraction(v) - low) / scale for v in row], uniforms) + [0] * (len(row) % 2)
    packed = bytes(even | odd << 4 for even, odd in zip(codes[::2], codes[1::2], strict=True))
    return packed + bf16_bytes(scale, low)


def int2(row: list[float], uniforms: Uniforms = None) -> bytes:
    scale = to_bf16(Fraction(math.sqrt(sum(Fraction(v) ** 2 for v in row) / len(row))), math.ceil)
    levels = [Fraction(v) / (scale * 255 / 256) + Fraction(3, 2) for v in row]
    codes = picks([min(max(level, Fraction(0)), Fraction(3)) for level in levels], uniforms) + [0] * (-len(row) % 4)
    return bytes(a | b << 2 | c << 4 | d << 6 for a, b, c, d in zip(*[iter(codes)] * 4, strict=True)) + bf16_bytes(scale)


ORACLES: dict[str, Oracle] = {
    "fp16": fp16,
    "bf16": bf16,
    "fp8_e4m3": fp8(3, -6, 448.0),
    "fp8_e5m2": fp8(2, -14, 57344.0),
    "int8": int8,
    "int4": int4,
    "int2": int2,
}

ROW_BYTES = {"int2": [34, 7, 3]}
"""Of 128, 20 and 1 values."""


def stochastic(codec: str) -> CodecLike:
    return {"codec": codec, "rounding": "stochastic"}


# The noise of the tests begins with 0.867, 0.340, 0.340, 0.634, 0.098, 0.960: a value goes to the upper of its neighbours (the
# one farther from zero in the float formats) if its part of the step is above that.
GOLDEN: list[tuple[CodecLike, list[float], str]] = [
    # RMS sqrt(4.2) = 2.0494 is rounded up to 0x4004 = 2.0625, step 2.0544: (x / step + 1.5) = 2.96, 0.04, 1.99, 1.01, 1.99
    ("int2", [3.0, -3.0, 1.0, -1.0, 1.0], "63 02  04 40"),
    # all zeros: scale 0, and 1.5 is a tie, to even: 2
    ("int2", [0.0, 0.0], "0a  00 00"),
    # RMS 0.8165 / sqrt(2) is rounded up to 1.0, byte 127: 2.504, 0.496, 1.5
    ({"codec": "int2", "scale": "e8m0"}, [1.0, -1.0, 0.0], "23  7f"),
    # 0.8165 = 0x3F5105EC: (x / 0.8133 + 1.5) = 2.73, 0.27, 1.5
    ({"codec": "int2", "scale": "fp32"}, [1.0, -1.0, 0.0], "23  ec 05 51 3f"),
    # RMS 1.2845 up to 0x3FA5 = 1.2891, step 1.2840: 3.06 saturates; 1.5 up; -0.06 saturates; 1.5 down; 1.11 up
    (stochastic("int2"), [2.0, 0.0, -2.0, 0.0, -0.5], "4b 02  a5 3f"),
    # exact, 0.5 up, 1.5 up, 2.6 down, exact
    (stochastic("int8"), [0.0, 0.5, 1.5, 2.6, 255.0], "00 01 02 02 ff  00 00 80 3f  00 00 00 00"),
    # exact, exact, 7.5 up, exact, 3.25 up
    (stochastic("int4"), [0.0, 1.0, 7.5, 15.0, 3.25], "10 f8 04  80 3f  00 00"),
    # exact, half a step up twice, half of the smallest subnormal down and up, exact
    (stochastic("fp8_e4m3"), [448.0, -1.0625, 1.0625, 2.0**-10, 2.0**-10, -1.0], "7e b9 39 00 01 b8  7f"),
    # exact, half a step up, a quarter down, half of the smallest subnormal down (the sign stays) and up
    (stochastic("fp8_e5m2"), [57344.0, 1.125, -1.0625, -(2.0**-17), 2.0**-17], "7b 3d bc 80 01  7f"),
    # exact, half a step up, a quarter down, half of the smallest subnormal down; saturated
    (stochastic("fp16"), [1.0, 1 + 2.0**-11, -1 - 2.0**-12, 2.0**-25, 1e6], "00 3c  01 3c  00 bc  00 00  ff 7b"),
    (stochastic("bf16"), [1.0, 1 + 2.0**-8, -1 - 2.0**-9, 3.4028234e38], "80 3f  81 3f  80 bf  7f 7f"),
]
