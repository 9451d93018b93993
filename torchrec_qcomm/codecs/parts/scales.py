"""The scale of a row on the wire: one positive number, or NaN for a row with a value that is not finite.

| format | bytes | powers of two from, to | relative step |
|---|---|---|---|
| fp32 | 4 | -126, 127 | 2**-23 |
| bf16 | 2 | -126, 127 | 2**-7 |
| fp16 | 2 | -14, 15 | 2**-10 |
| e8m0 | 1 | -126, 127 | 1 |

A scale is rounded up, so that the maximum that it was made from is not clipped. It is clamped to the range of its format. Codes
are then computed from the rounded scale. (A scale that is a mean clips nothing, so it is rounded by `nearest`.) A row of zeros
has scale 0 (in E8M0 byte 0). FP16's range is small: rows beyond it saturate, and rows below it have an absolute error.
"""

from __future__ import annotations

import torch

from torchrec_qcomm.codecs.parts.memory import Scratch, read_as, write_as
from torchrec_qcomm.errors import CodecError, describe

FORMATS = {"fp32": 4, "bf16": 2, "fp16": 2, "e8m0": 1}
"""Bytes of a scale."""

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_LARGEST = {"fp32": 2.0**127, "bf16": 2.0**127, "fp16": 65504.0, "e8m0": 2.0**127}
_SMALLEST = {"fp32": 2.0**-126, "bf16": 2.0**-126, "fp16": 2.0**-14, "e8m0": 2.0**-126}
_DROPPED = {"fp32": 0, "bf16": 16, "fp16": 13, "e8m0": 23}
"""Bits of FP32's mantissa that a format does not have."""


def check_format(codec: str, name: str, allowed: tuple[str, ...] = tuple(FORMATS)) -> None:
    """Raise ``CodecError`` unless ``name`` is a format that the codec can have."""
    if name not in allowed:
        raise CodecError(describe(f"codec {codec}, scale", "unknown format", got=name, allowed=allowed))


def rounded(scale: torch.Tensor, name: str) -> torch.Tensor:
    """The scales ``[..., 1]`` as numbers of the format, in FP32: rounded up and clamped; 0 stays 0 and NaN stays NaN."""
    if dropped := (1 << _DROPPED[name]) - 1:
        up = (scale.view(torch.int32) + dropped).bitwise_and_(~dropped).view(torch.float32)
        up = torch.where(scale.isnan(), scale, up)  # the carry may turn a NaN into a number
    else:
        up = scale
    clamped = up.clamp(_SMALLEST[name], _LARGEST[name])
    return torch.where(scale == 0, 0.0, clamped)


def nearest(scale: torch.Tensor, name: str) -> torch.Tensor:
    """The scales ``[..., 1]`` rounded to nearest, ties to even: for scales that are means, which clip nothing.

    A scale below half the smallest number of the format, subnormals included, becomes 0. A scale above the largest becomes the
    largest. NaN stays NaN.
    """
    if name == "e8m0":
        bits = scale.view(torch.int32)
        bits = (bits >> 23).bitwise_and_(1).add_(bits).add_((1 << 22) - 1).bitwise_and_(-(1 << 23))
        return torch.where(scale.isnan(), scale, bits.view(torch.float32).clamp_(max=_LARGEST[name]))
    dtype = _DTYPES[name]
    limit = torch.finfo(dtype).max
    return scale.clamp(max=limit).to(dtype).float()


def write(scale: torch.Tensor, name: str, data: torch.Tensor, scratch: Scratch) -> None:
    """Write `rounded` scales ``[..., 1]`` into the bytes ``data [..., FORMATS[name]]``."""
    if name == "e8m0":
        # The byte is the exponent field: 0 for a zero, 255 for a NaN.
        data.copy_(scale.view(torch.int32).bitwise_right_shift(23).bitwise_and_(0xFF))
        return
    write_as(data, scale, _DTYPES[name], scratch, "scale")


def read(data: torch.Tensor, name: str, scratch: Scratch) -> torch.Tensor:
    """The scales in ``data``, FP32 ``[..., 1]``."""
    if name == "e8m0":
        scale = data.to(torch.int32).bitwise_left_shift_(23).view(torch.float32)  # byte 255: Inf
        return scale.add_(scale, alpha=0.0)  # Inf * 0 is NaN
    return read_as(data, _DTYPES[name], scratch, "scale").float()
