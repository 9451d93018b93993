"""Checks of what is given to a codec; each names the codec, the value and what is allowed."""

from __future__ import annotations

import torch

from torchrec_qcomm.codecs.base import Codec
from torchrec_qcomm.errors import CodecError, WireError, describe

FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""The payloads that every codec takes."""


def check_float(codec: Codec, dtype: torch.dtype) -> None:
    """Raise ``CodecError`` unless ``dtype`` is one that every codec takes."""
    if dtype not in FLOAT_DTYPES:
        raise CodecError(
            describe(f"codec {codec.spec}", "unsupported dtype", got=str(dtype), allowed=[str(d) for d in FLOAT_DTYPES])
        )


def check_dim(codec: Codec, dim: int) -> None:
    """Raise ``WireError`` unless a row can have ``dim`` values."""
    if dim < 1:
        raise WireError(describe(f"codec {codec.spec}", "a row needs at least one value", got=dim, allowed="dim >= 1"))


def check_tensor(
    where: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype | tuple[torch.dtype, ...]
) -> None:
    """Raise ``WireError`` unless ``tensor`` has ``shape``, (one of) ``dtype`` and a contiguous last dimension."""
    dtypes = dtype if isinstance(dtype, tuple) else (dtype,)
    if tensor.dtype not in dtypes:
        raise WireError(describe(where, "wrong dtype", got=str(tensor.dtype), allowed=[str(d) for d in dtypes]))
    if tuple(tensor.shape) != shape:
        raise WireError(describe(where, "wrong shape", got=list(tensor.shape), allowed=str(list(shape))))
    if tensor.numel() and shape[-1] > 1 and tensor.stride(-1) != 1:
        raise WireError(
            describe(where, "the last dimension must be contiguous", got=f"stride {tensor.stride(-1)}", allowed="stride 1")
        )


def check_decode(
    codec: Codec, data: torch.Tensor, dim: int, out: torch.Tensor | None, dtype: torch.dtype
) -> tuple[tuple[int, ...], torch.dtype]:
    """The shape and dtype that decoding ``data`` gives; raises unless ``data`` and ``out`` fit, see ``Codec.decode``."""
    dtype = dtype if out is None else out.dtype
    codec.check_payload(dtype)
    lead = tuple(data.shape[:-1])
    check_tensor(f"codec {codec.spec}, decode, data", data, (*lead, codec.row_bytes(dim, dtype)), torch.uint8)
    if out is not None:
        check_tensor(f"codec {codec.spec}, decode, out", out, (*lead, dim), dtype)
    return (*lead, dim), dtype
