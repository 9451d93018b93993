"""Lookup-table and microscaling codecs: bytes by hand, and second implementations in plain Python."""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator

from torchrec_qcomm.codecs import CodecLike

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E4M3 = tuple(math.ldexp(c & 7, -9) if c < 8 else math.ldexp(8 + (c & 7), (c >> 3) - 10) for c in range(127))  # code 127 is NaN
NORMAL4 = (0.1283950299, 0.3880482995, 0.6567591185, 0.9423404565, 1.2562311973, 1.6180463860, 2.0690172265, 2.7325895710)
NORMAL2 = (0.4527800346, 1.5104176085)
EVEN = [i - 7.5 for i in range(16)]
"""Levels that make it easy to count: thresholds are the integers from -7 to 7."""

GOLDEN: list[tuple[CodecLike, list[float], str]] = [
    # Mean square (1 + 49) / 2 = 25, so s = 5.0 = 0x40A0 in BF16. 1.4 is nearest 1.2562 (code 12), -0.2 nearest -0.1284 (7)
    ("lut4", [7.0, -1.0], "7c  a0 40"),
    # s = 1 = 0x3F80. 1 is nearest 0.9423 (11), -1 nearest -0.9423 (4); the last high nibble is empty
    ("lut4", [1.0, -1.0, 1.0], "4b 0b  80 3f"),
    # s = sqrt(42 / 3) = 3.74166 = 0x406F7751, up to 0x4070 = 3.75. Units 0.267, 0.533, 1.333: codes 7, 9, 11 with the ties
    # -7..7 of EVEN: thresholds below 0.267 are -7..0, 8 of them; below 1.333 -7..1, 9
    ({"codec": "lut4", "levels": EVEN}, [1.0, 2.0, math.sqrt(37.0)], "88 09  70 40"),
    # s = 1, and 1 and -1 are ties of EVEN: to the lower level, 0.5 (8) and -1.5 (6); FP32 scale 0x3F800000
    ({"codec": "lut4", "levels": EVEN, "scale": "fp32"}, [1.0, -1.0], "68  00 00 80 3f"),
    # Zeros: the tie between -0.128 and 0.128 goes to code 7, the scale is 0
    ("lut4", [0.0, 0.0], "77  00 00"),
    # s = 5; 1.4 is nearest 1.510 (3), -0.2 nearest -0.453 (1), -1.4 nearest -1.510 (0): 3 | 1 << 2 | 3 << 4 | 0 << 6, then 1
    ("lut2", [7.0, -1.0, 7.0, -7.0, -1.0, 1.0, 1.0, 7.0, -1.0, -7.0], "37 e9 01  a0 40"),
    # amax 6: e = 0, byte 127. 6 = code 7, -0.5 = 8 | 1, 2.5 is a tie between 2 (4) and 3 (5): even; 5 between 4 (6) and 6 (7)
    ("mxfp4", [6.0, -0.5, 2.5, 5.0, 0.25], "97 64 00  7f"),
    # 6.0000005 is above: e = 1. Halves: 3 (5) and -0.25, a tie to code 0 with its sign
    ("mxfp4", [6.0000005, -0.5], "85  80"),
    # OCP's rule: floor(log2 7) - 2 = 0, and 7 is clipped to 6; rounding up has e = 1, 3.5 is a tie between 3 (5) and 4 (6)
    ({"codec": "mxfp4", "scale_rule": "floor"}, [7.0, 1.0], "27  7f"),
    ("mxfp4", [7.0, 1.0], "16  80"),
    # Two blocks: 31 zeros and a 6 (e = 0), and behind it a short block, 0.75 with e = -3 (byte 124). One of zeros: byte 0
    ("mxfp4", [0.0] * 31 + [6.0] + [0.75], "00" * 15 + "70 07  7f 7c"),
    ("mxfp4", [0.0] * 32 + [1.0, -1.0], "00" * 16 + "e6  00 7d"),
    # amax 448: e = 0; code bytes as fp8_e4m3
    ("mxfp8", [448.0, -448.0, 1.0, 2.0**-9, 1.0625], "7e fe 38 01 38  7f"),
    ("mxfp8", [448.0] * 32 + [1.0, 0.5], "7e" * 32 + "78 70  7f 77"),
    ({"codec": "mxfp8", "scale_rule": "floor"}, [500.0, 1.0], "7e 38  7f"),
]


def bf16_up(value: float) -> tuple[bytes, float]:
    bits = struct.unpack("<I", struct.pack("<f", value))[0] + 0xFFFF >> 16
    return struct.pack("<H", bits), struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def packed(codes: list[int], bits: int) -> bytes:
    each = 8 // bits
    return bytes(sum(c << bits * i for i, c in enumerate(codes[at : at + each])) for at in range(0, len(codes), each))


def lut(row: list[float], positive: tuple[float, ...], bits: int) -> bytes:
    levels = [*(-v for v in reversed(positive)), *positive]
    header, scale = bf16_up(math.sqrt(math.fsum(v * v for v in row) / len(row)))
    codes = [min(range(len(levels)), key=lambda i, v=v: abs(v / scale - levels[i])) for v in row]
    return packed(codes, bits) + header


def blocks(row: list[float], largest: float) -> Iterator[tuple[list[float], int]]:
    """The values of each block divided by its scale, and the scale's byte."""
    for at in range(0, len(row), 32):
        block, e = row[at : at + 32], -127
        while max(map(abs, block)) > math.ldexp(largest, e):
            e += 1
        yield [math.ldexp(v, -e) for v in block], e + 127


def mx(row: list[float], table: tuple[float, ...], sign: int, noise: list[float] | None = None) -> tuple[list[int], bytes]:
    """Codes and scale bytes: the nearest of the table, ties to the even code; the upper one if the noise is below the rest."""
    codes, scales, at = [], [], 0
    for block, byte in blocks(row, table[-1]):
        scales.append(byte)
        for v in block:
            above = bisect_left(table, abs(v))
            below = above if table[above] == abs(v) else above - 1
            gap = table[above] - table[below]
            rest = (abs(v) - table[below]) / gap if gap else 0.0
            if noise is None:
                up = rest > 0.5 or (rest == 0.5 and below % 2 == 1)
            else:  # stochastic rounding goes up or down, not away from zero or to it
                up = noise[at] < rest if v >= 0 else noise[at] >= 1 - rest
            codes.append((above if up else below) | (sign if math.copysign(1, v) < 0 else 0))
            at += 1
    return codes, bytes(scales)


def mxfp4(row: list[float]) -> bytes:
    codes, scales = mx(row, E2M1, 8)
    return packed(codes, 4) + scales


def mxfp8(row: list[float]) -> bytes:
    codes, scales = mx(row, E4M3, 128)
    return bytes(codes) + scales


ORACLES: dict[str, Callable[[list[float]], bytes]] = {
    "lut4": lambda row: lut(row, NORMAL4, 4),
    "lut2": lambda row: lut(row, NORMAL2, 2),
    "mxfp4": mxfp4,
    "mxfp8": mxfp8,
}

ROW_BYTES: dict[str, list[int]] = {  # D = 128, 20, 1
    "lut4": [66, 12, 3],
    "lut2": [34, 7, 3],
    "mxfp4": [68, 11, 2],
    "mxfp8": [132, 21, 2],
}
