"""Every lossy codec against a second implementation: exact rational arithmetic in plain Python, a few lines each."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch

from tests.codecs.cases import gaussian
from torchrec_qcomm import codecs


def round_float(value: float, mantissa: int, smallest: int) -> tuple[int, float]:
    """Bits (without sign) and value of ``|value|`` in a binary float with that many mantissa bits and smallest exponent."""
    exponent = max(math.frexp(value)[1] - 1, smallest)
    step = math.ldexp(1.0, exponent - mantissa)
    steps = round(abs(value) / step)  # Python rounds ties to even
    return ((exponent - smallest) << mantissa) + steps, steps * step


def fp16(row: list[float]) -> bytes:
    return b"".join(struct.pack("<e", value) for value in row)


def bf16(row: list[float]) -> bytes:
    return b"".join(struct.pack("<H", round_float(v, 7, -126)[0] | (0x8000 if v < 0 else 0)) for v in row)


def fp8(row: list[float], mantissa: int, smallest: int, largest: float) -> bytes:
    exponent = -200
    while max(map(abs, row)) > math.ldexp(largest, exponent):
        exponent += 1
    codes = [round_float(math.ldexp(v, -exponent), mantissa, smallest)[0] | (0x80 if v < 0 else 0) for v in row]
    return bytes([*codes, exponent + 127])


def int8(row: list[float]) -> bytes:
    low, high = Fraction(min(row)), Fraction(max(row))
    codes = bytes(round((Fraction(v) - low) * 255 / (high - low)) for v in row)
    return codes + struct.pack("<ff", (high - low) / 255, low)


def int4(row: list[float]) -> bytes:
    def to_bf16(value: Fraction, direction: Callable[[Fraction], int]) -> Fraction:
        exponent = math.frexp(float(value))[1] - 8
        return direction(value / Fraction(2) ** exponent) * Fraction(2) ** exponent

    low = to_bf16(Fraction(min(row)), math.floor)
    scale = to_bf16((Fraction(max(row)) - low) / 15, math.ceil)
    codes = [round((Fraction(v) - low) / scale) for v in row] + [0] * (len(row) % 2)
    packed = bytes(even | odd << 4 for even, odd in zip(codes[::2], codes[1::2], strict=True))
    return packed + b"".join(struct.pack("<f", float(v))[2:] for v in (scale, low))


ORACLES: dict[str, Callable[[list[float]], bytes]] = {
    "fp16": fp16,
    "bf16": bf16,
    "fp8_e4m3": lambda row: fp8(row, 3, -6, 448.0),
    "fp8_e5m2": lambda row: fp8(row, 2, -14, 57344.0),
    "int8": int8,
    "int4": int4,
}


def test_every_lossy_codec_has_an_oracle() -> None:
    assert set(ORACLES) == set(codecs.names()) - {"none", "fp32"}


@pytest.mark.parametrize("dim", [2, 7, 64])
@pytest.mark.parametrize("name", ORACLES)
def test_bytes_equal_the_oracle(name: str, dim: int) -> None:
    values = gaussian(60, dim, seed=dim) * torch.exp2(torch.randint(-8, 8, (60, 1), generator=torch.Generator().manual_seed(1)))
    values[::3] += 2.5
    for backend in codecs.backends(name):
        data = codecs.get(name, backend).encode(values)
        for row, found in zip(values.tolist(), data.tolist(), strict=True):
            expected = ORACLES[name](row)
            if name != "int8":
                assert bytes(found) == expected
                continue
            # Its codes are computed in FP32, so a value that lies within a few ulps of a tie may fall on the other side.
            ties = [abs((v - min(row)) * 255 / (max(row) - min(row)) % 1 - 0.5) < 1e-4 for v in row]
            for code, right, tie in zip(found[:dim], expected[:dim], ties, strict=True):
                assert code == right or (tie and abs(code - right) == 1)
            scale, low = struct.unpack("<ff", bytes(found[dim:]))
            right_scale, right_low = struct.unpack("<ff", expected[dim:])
            assert low == right_low
            assert scale == pytest.approx(right_scale, rel=2.0**-22)


@pytest.mark.parametrize(("name", "largest"), [("fp8_e4m3", 0x7E), ("fp8_e5m2", 0x7B)])
def test_every_fp8_code_decodes_to_what_torch_says(name: str, largest: int) -> None:
    codes = torch.tensor([c for c in range(256) if c & 0x7F <= largest], dtype=torch.uint8)
    dtype = torch.float8_e4m3fn if name == "fp8_e4m3" else torch.float8_e5m2
    for byte in (1, 2, 100, 127, 200, 239):
        data = torch.cat([codes, torch.tensor([byte], dtype=torch.uint8)])
        decoded = codecs.get(name).decode(data, len(codes)).double()
        assert torch.equal(decoded, codes.view(dtype).double() * 2.0 ** (byte - 127))
