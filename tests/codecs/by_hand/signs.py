"""Bytes by hand and second implementations of ``sign``, ``onebit``, ``ternary``, ``qsgd`` and ``natural``.

Those of stochastic codecs get the noise as numbers in [0, 1). Rows by hand have values that are levels, which noise does not
move.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction

from torchrec_qcomm.codecs import CodecLike

GOLDEN: list[tuple[CodecLike, list[float], str]] = [
    # 7 / 4 = 1.75 = 0x3FE0; columns 0 and 3 are negative (bits 0 and 3); zeros of both signs are not
    ("sign", [-1.0, 2.0, 0.0, -4.0], "09  e0 3f"),
    # nine columns are two bytes; (9 + 1/16) / 9 = 1.00694 is nearer to 1 + 2**-7 = 0x3F81 than to 1.0
    ("sign", [-1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -1.0625], "01 01  81 3f"),
    ("sign", [0.0, -0.0], "00  00 00"),
    # (1 + 2) / 2 = 1.5: a tie between 1 and 2, to the even byte, 128; 2.75 / 2 = 1.375 is nearer to 1, byte 127
    ({"codec": "sign", "scale": "e8m0"}, [1.0, -2.0], "02  80"),
    ({"codec": "sign", "scale": "e8m0"}, [1.0, -1.75], "02  7f"),
    # low = -2 = 0xC000, high = (1 + 0 + 5) / 3 = 2 = 0x4000
    ("onebit", [-1.0, 1.0, 0.0, -3.0, 5.0], "09  00 c0  00 40"),
    # no negatives: low = 0; high = (1 + 1 + 2**-7) / 2 = 1 + 2**-8 is a tie between 1 and 1 + 2**-7, to even: 0x3F80
    ("onebit", [1.0, 1.0078125], "00  00 00  80 3f"),
    ("onebit", [-1.0], "01  80 bf  00 00"),
    # s = 2 = 0x4000; 2 0 1 1 1 -> 2 + 9 + 27 + 81 = 119; 2 -> 2
    ("ternary", [2.0, -2.0, 0.0, -0.0, 0.0, 2.0], "77 02  00 40"),
    ("ternary", [0.0], "01  00 00"),
    # rms = 2 clips at 1.0 = 0x3F80: all saturate. 2 0 2 0 -> 2 + 18 = 20
    ({"codec": "ternary", "clip": 0.5}, [2.0, -2.0, 2.0, -2.0], "14  80 3f"),
    # norm = sqrt(2**2 + 3**2 + 6**2) = 7, scale = 1.0 = 0x3F80, codes 2 + 7, -3 + 7, 6 + 7, 0 + 7
    ("qsgd", [2.0, -3.0, 6.0, 0.0], "49 7d  80 3f"),
    ({"codec": "qsgd", "norm": "max"}, [14.0, -2.0, 0.0], "6e 07  00 40"),
    ({"codec": "qsgd", "norm": "max"}, [0.0], "07  00 00"),
    # one level: -4, 0 and 4 are codes 0, 1, 2: 2 + 0 * 4 + 1 * 16 + 1 * 64 = 82, then 2
    ({"codec": "qsgd", "bits": 2, "norm": "max"}, [4.0, -4.0, 0.0, 0.0, 4.0], "52 02  80 40"),
    ({"codec": "qsgd", "bits": 8, "norm": "max"}, [127.0, -127.0, 1.0, 0.0], "fe 00 80 7f  80 3f"),
    # 127.5 / 127 is rounded up to the power of two 2, byte 128; 0, 2 and 126 are levels of that
    ({"codec": "qsgd", "bits": 8, "norm": "max", "scale": "e8m0"}, [126.0, -128.0, 2.0], "be 3f 80  80"),
    # scale 4, byte 129. m: 127, 126, 125 and 0, the sign is 0x80
    ("natural", [4.0, -2.0, 1.0, 0.0], "7f fe 7d 00  81"),
    # 2**-126 of the largest is the smallest power, m = 1
    ("natural", [1.0, -(2.0**-126)], "7f 81  7f"),
    ("natural", [0.0, 0.0], "00 00  00"),
    # m: 7, 6, 1 and 0, the sign is 8; the even column is low
    ({"codec": "natural", "bits": 4}, [1.0, -0.5, 2.0**-6, 0.0, -1.0], "e7 01 0f  7f"),
]

ROW_BYTES = {
    "natural": [129, 21, 2],
    "qsgd": [66, 12, 3],
    "ternary": [28, 6, 3],
    "onebit": [20, 7, 5],
    "sign": [18, 5, 3],
}
"""Of 128, 20 and 1 values."""


def bf16(value: Fraction, direction: Callable[[Fraction], int]) -> tuple[bytes, Fraction]:
    """Two bytes and the value, rounded to 8 bits by ``direction``."""
    if value == 0:
        return b"\0\0", value
    step = Fraction(2) ** (math.frexp(float(value))[1] - 8)
    value = direction(value / step) * step
    return struct.pack("<f", float(value))[2:], value


def bits_of(row: list[float]) -> bytes:
    return bytes(sum((v < 0) << i for i, v in enumerate(row[at : at + 8])) for at in range(0, len(row), 8))


def packed(codes: list[int], bits: int) -> bytes:
    each = 8 // bits
    return bytes(sum(c << bits * i for i, c in enumerate(codes[at : at + each])) for at in range(0, len(codes), each))


def sign(row: list[float]) -> bytes:
    return bits_of(row) + bf16(sum(abs(Fraction(v)) for v in row) / len(row), round)[0]


def onebit(row: list[float]) -> bytes:
    sides = [v for v in row if v < 0], [v for v in row if v >= 0]
    return bits_of(row) + b"".join(bf16(sum(map(Fraction, side)) / max(1, len(side)), round)[0] for side in sides)


def ternary(row: list[float], noise: list[float]) -> bytes:
    scale, s = bf16(Fraction(max(map(abs, row))), math.ceil)
    codes = [1 + (v > 0) - (v < 0) if u * s < abs(v) else 1 for v, u in zip(row, map(Fraction, noise), strict=True)]
    return bytes(sum(c * 3**i for i, c in enumerate(codes[at : at + 5])) for at in range(0, len(codes), 5)) + scale


def qsgd(row: list[float], noise: list[float], bits: int = 4, norm: str = "l2") -> bytes:
    s = 2 ** (bits - 1) - 1
    size = math.sqrt(sum(v * v for v in row)) if norm == "l2" else max(map(abs, row))
    wire, scale = bf16(Fraction(size) / s, math.ceil)
    steps = [Fraction(v) / scale for v in row]
    codes = [s + math.floor(t) + (u < t - math.floor(t)) for t, u in zip(steps, noise, strict=True)]
    return packed(codes, bits) + wire


def natural(row: list[float], noise: list[float], bits: int = 8) -> bytes:
    powers, codes = 2 ** (bits - 1) - 1, []
    mantissa, exponent = math.frexp(max(map(abs, row)))
    exponent -= mantissa == 0.5  # the power of two at or above the largest
    for v, u in zip(row, noise, strict=True):
        size = Fraction(abs(v)) / Fraction(2) ** exponent  # up to 1
        m = max(0, math.frexp(float(size))[1] - 1 + powers) if size else 0
        low, high = (Fraction(2) ** (k - powers) if k else 0 for k in (m, m + 1))
        draw = int(u * 2**24) % 2**23  # its lowest 23 bits
        up = round((size - low) / (high - low) * 2**23) + draw >= 2**23
        codes.append(m + up + ((v < 0) << bits - 1))
    return packed(codes, bits) + bytes([exponent + 127])


ORACLES: dict[str, Callable[..., bytes]] = {
    "sign": sign,
    "onebit": onebit,
    "ternary": ternary,
    "qsgd": qsgd,
    "natural": natural,
}
