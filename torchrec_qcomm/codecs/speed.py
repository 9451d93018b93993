"""How fast codecs work on this machine, in GB/s (1e9 bytes) of FP32 values, with as many threads as torch has."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter

import fbgemm_gpu  # noqa: F401  (registers torch.ops.fbgemm)
import torch

from torchrec_qcomm.codecs.base import Codec
from torchrec_qcomm.codecs.parts.noise import Noise


def codec_speed(codec: Codec, sample: torch.Tensor, seconds: float) -> tuple[float, float]:
    """``(encode, decode)``, into buffers that are there already, as in training.

    Args:
        codec: the codec.
        sample: FP32 ``[rows, dim]``, on the device that is timed.
        seconds: to spend on each direction; at least three runs, the median counts.
    """
    noise, out = Noise(site="speed"), torch.empty_like(sample)
    data = codec.encode(sample, noise=noise)
    encode = _speed(partial(codec.encode, sample, out=data, noise=noise), sample, seconds)
    return encode, _speed(partial(codec.decode, data, sample.shape[1], out=out), sample, seconds)


def copy_speed(sample: torch.Tensor, seconds: float) -> float:
    """Of a plain copy of the sample's values."""
    return _speed(partial(torch.empty_like(sample).copy_, sample), sample, seconds)


def fbgemm_speeds(sample: torch.Tensor, seconds: float) -> dict[int, tuple[float, float]]:
    """``{bits: (quantize, dequantize)}`` of FBGEMM's fused row-wise kernels that take rows of this dim."""
    ops, found = torch.ops.fbgemm, {}
    eight = ops.FloatToFused8BitRowwiseQuantized(sample)
    found[8] = (
        _speed(partial(ops.FloatToFused8BitRowwiseQuantized, sample), sample, seconds),
        _speed(partial(ops.Fused8BitRowwiseQuantizedToFloat, eight), sample, seconds),
    )
    for bits in (4, 2):
        if sample.shape[1] * bits % 16:
            continue  # its rows must have an even number of bytes
        rows = ops.FloatToFusedNBitRowwiseQuantizedSBHalf(sample, bits)
        found[bits] = (
            _speed(partial(ops.FloatToFusedNBitRowwiseQuantizedSBHalf, sample, bits), sample, seconds),
            _speed(partial(ops.FusedNBitRowwiseQuantizedSBHalfToFloat, rows, bits), sample, seconds),
        )
    return found


def _speed(work: Callable[[], object], sample: torch.Tensor, seconds: float) -> float:
    """By the median of at least three runs after one."""

    def once() -> float:
        start = perf_counter()
        work()
        if sample.device.type == "cuda":
            torch.cuda.synchronize(sample.device)
        return perf_counter() - start

    once()
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        times.append(once())
    return sample.numel() * 4 / median(times) / 1e9
