"""The formats themselves, in plain torch: the oracle of every other backend, and what runs on any device."""

from __future__ import annotations

from typing import Any

from torchrec_qcomm.codecs.formats.fp8 import Fp8E4M3, Fp8E5M2
from torchrec_qcomm.codecs.formats.half import Bf16, Fp16
from torchrec_qcomm.codecs.formats.int2 import Int2
from torchrec_qcomm.codecs.formats.int4 import Int4
from torchrec_qcomm.codecs.formats.int8 import Int8
from torchrec_qcomm.codecs.formats.lut import Lut2, Lut4
from torchrec_qcomm.codecs.formats.mx import Mxfp4, Mxfp8
from torchrec_qcomm.codecs.formats.natural import Natural
from torchrec_qcomm.codecs.formats.onebit import OneBit
from torchrec_qcomm.codecs.formats.qsgd import Qsgd
from torchrec_qcomm.codecs.formats.raw import Fp32, NoneCodec
from torchrec_qcomm.codecs.formats.sign import Sign
from torchrec_qcomm.codecs.formats.ternary import Ternary

FORMATS: dict[str, type[Any]] = {
    "none": NoneCodec,
    "fp32": Fp32,
    "fp16": Fp16,
    "bf16": Bf16,
    "fp8_e4m3": Fp8E4M3,
    "fp8_e5m2": Fp8E5M2,
    "mxfp8": Mxfp8,
    "int8": Int8,
    "natural": Natural,
    "mxfp4": Mxfp4,
    "int4": Int4,
    "lut4": Lut4,
    "qsgd": Qsgd,
    "int2": Int2,
    "lut2": Lut2,
    "ternary": Ternary,
    "onebit": OneBit,
    "sign": Sign,
}
"""One line a format, from the most to the fewest bits."""
