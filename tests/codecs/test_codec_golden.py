"""Bytes worked out by hand: the wire format cannot change unnoticed."""

from __future__ import annotations

import pytest
import torch

from tests.codecs.by_hand import signs, tables, uniform
from tests.codecs.checks.cases import NOISE
from torchrec_qcomm import codecs
from torchrec_qcomm.codecs import CodecLike

GOLDEN: list[tuple[CodecLike, list[float], str]] = [
    # FP32 little-endian: 1.0 = 0x3F800000, -2.5 = 0xC0200000
    ("none", [1.0, -2.5], "00 00 80 3f  00 00 20 c0"),
    ("fp32", [1.0, -2.5], "00 00 80 3f  00 00 20 c0"),
    # 1.0 = 0x3C00, -2.0 = 0xC000, 1e6 saturates at 65504 = 0x7BFF
    ("fp16", [1.0, -2.0, 1e6], "00 3c  00 c0  ff 7b"),
    # times 4: 4.0 = 0x4400, 2**-26 * 4 = 2**-24, the smallest subnormal = 0x0001
    ({"codec": "fp16", "loss_scale": 4}, [1.0, 2.0**-26], "00 44  01 00"),
    # the upper half of 0x3F800000 and 0x40490FDB (pi; the lower half rounds down); 1 + 2**-8 is a tie, to even: 1.0;
    # FLT_MAX would round to Inf and saturates at 0x7F7F
    ("bf16", [1.0, 3.14159274, 1 + 2.0**-8, 3.4028234e38], "80 3f  49 40  80 3f  7f 7f"),
    # amax = 448, so e = 0 and the scale byte is 127. 448 = 1.75 * 2**8: exponent 15, mantissa 6. 1.0: exponent 7.
    # 2**-9 is the smallest subnormal. 1.0625 is a tie between 1.0 and 1.125, to even: 1.0
    ("fp8_e4m3", [448.0, -448.0, 1.0, 2.0**-9, 1.0625], "7e fe 38 01 38  7f"),
    # amax = 1: 448 * 2**-9 = 0.875 is too small, so e = -8, byte 119. 1 * 2**8 has exponent 15, 0.5 * 2**8 has 14
    ("fp8_e4m3", [1.0, 0.5, 0.0], "78 70 00  77"),
    # amax = 0.875 = 448 * 2**-9 exactly: e = -9, byte 118, and the next FP32 above it has e = -8
    ("fp8_e4m3", [0.875], "7e  76"),
    ("fp8_e4m3", [0.8750001], "76  77"),
    ("fp8_e4m3", [0.0, 0.0], "00 00  00"),
    # amax = 57344, e = 0. 57344 = 1.75 * 2**15: exponent 30, mantissa 3. 1.0: exponent 15. -2**-16 is the smallest subnormal
    ("fp8_e5m2", [57344.0, 1.0, -(2.0**-16), 0.0], "7b 3c 81 00  7f"),
    # amax = 1: 57344 * 2**-16 = 0.875 is too small, so e = -15, byte 112; 1 * 2**15 has exponent 30
    ("fp8_e5m2", [1.0, -0.5], "78 f4  70"),
    # range 255, so scale = 1.0 = 0x3F800000 and minimum 0; the ties 0.5 and 1.5 go to even
    ("int8", [0.0, 0.5, 1.5, 2.6, 255.0], "00 00 02 03 ff  00 00 80 3f  00 00 00 00"),
    # minimum -1.0 = 0xBF800000
    ("int8", [-1.0, 0.0, 254.0], "00 01 ff  00 00 80 3f  00 00 80 bf"),
    # a constant row: scale 0, minimum 3.7 = 0x406CCCCD
    ("int8", [3.7, 3.7], "00 00  00 00 00 00  cd cc 6c 40"),
    # scale 15 / 15 = 1.0 = 0x3F80 in BF16, minimum 0; pairs (0, 1), (7, 15), (3, nothing), the even column low
    ("int4", [0.0, 1.0, 7.0, 15.0, 3.0], "10 f7 03  80 3f  00 00"),
    # 1 / 15 = 0x3D888889 is rounded up to 0x3D89; 1 / 0x3D89 = 14.95, code 15
    ("int4", [0.0, 1.0], "f0  89 3d  00 00"),
    # -(1 + 2**-8) is rounded down to -(1 + 2**-7) = 0xBF81. (1.984375 + 1.0078125) / 15 = 0.199479 = 0x3E4C4444, up to 0x3E4D =
    # 0.200195. The first value is 2**-8 / 0.2 = 0.02 steps above the minimum: 0; the second 14.95: 15
    ("int4", [-(1 + 2.0**-8), 1.984375], "f0  4d 3e  81 bf"),
    *tables.GOLDEN,
    *uniform.GOLDEN,
    *signs.GOLDEN,
]


@pytest.mark.parametrize(("like", "values", "expected"), GOLDEN)
def test_bytes(like: CodecLike, values: list[float], expected: str) -> None:
    for backend in codecs.backends(codecs.spec(like).name):
        data = codecs.get(like, backend).encode(torch.tensor([values]), noise=NOISE)
        assert bytes(data[0].tolist()).hex() == expected.replace(" ", "")


def test_every_codec_has_golden_bytes() -> None:
    assert {codecs.spec(like).name for like, _, _ in GOLDEN} == set(codecs.names())


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
def test_a_faulty_row_has_scale_byte_255(name: str) -> None:
    assert codecs.get(name).encode(torch.tensor([[1.0, torch.inf], [torch.nan, 0.0]]))[:, -1].tolist() == [255, 255]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", [512, 80, 4]),
        ("fp32", [512, 80, 4]),
        ("fp16", [256, 40, 2]),
        ("bf16", [256, 40, 2]),
        ("fp8_e4m3", [129, 21, 2]),
        ("fp8_e5m2", [129, 21, 2]),
        ("int8", [136, 28, 9]),
        ("int4", [68, 14, 5]),
        *tables.ROW_BYTES.items(),
        *uniform.ROW_BYTES.items(),
        *signs.ROW_BYTES.items(),
    ],
)
def test_row_bytes(name: str, expected: list[int]) -> None:
    assert [codecs.get(name).row_bytes(dim) for dim in (128, 20, 1)] == expected


def test_none_counts_the_bytes_of_the_payload() -> None:
    codec = codecs.get("none")
    assert codec.row_bytes(20, torch.bfloat16) == 40
    assert codec.encode(torch.zeros(3, 20, dtype=torch.float16)).shape == (3, 40)


def test_none_copies_nothing() -> None:
    codec, values = codecs.get("none"), torch.arange(12.0).view(3, 4)
    data = codec.encode(values)
    assert data.data_ptr() == values.data_ptr()
    assert codec.decode(data, 4).data_ptr() == values.data_ptr()


def test_none_keeps_the_bits_of_a_nan() -> None:
    bits = torch.tensor([[0x7F800001, -1, 0x7FC12345, -0x80000000]], dtype=torch.int64).to(torch.int32)
    for name in ("none", "fp32"):
        codec = codecs.get(name)
        out = torch.zeros(1, 4)
        codec.decode(codec.encode(bits.view(torch.float32), out=torch.zeros(1, 16, dtype=torch.uint8)), 4, out=out)
        assert torch.equal(out.view(torch.int32), bits)
