"""``none`` and ``fp32``: the payload's own bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from torchrec_qcomm.codecs.base import Codec
from torchrec_qcomm.codecs.checks import check_decode, check_dim, check_float, check_tensor
from torchrec_qcomm.codecs.defaults import CodecDefaults
from torchrec_qcomm.codecs.parts.noise import Noise
from torchrec_qcomm.errors import CodecError, describe


@dataclass(frozen=True, slots=True)
class NoneCodec(CodecDefaults):
    """The payload's own dtype, bit for bit. The default codec.

    Bytes of a row: ``value 0 | value 1 | ...``, each of the dtype's size (4 for FP32, 2 for FP16 and BF16), little-endian.

    Bound: 0. Nothing saturates. NaN and Inf arrive as they are, with all their bits. Without ``out``, both directions return a
    view of what they were given if memory allows it (``encode``: contiguous values; ``decode``: aligned bytes).
    """

    name: ClassVar[str] = "none"

    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int:
        check_dim(self, dim)
        return dim * dtype.itemsize

    def check_payload(self, dtype: torch.dtype) -> None:
        check_float(self, dtype)

    def within(self, range_header: torch.Tensor) -> Codec:
        return self

    def encode(self, values: torch.Tensor, out: torch.Tensor | None = None, noise: Noise | None = None) -> torch.Tensor:
        self.check_payload(values.dtype)
        values = values.detach()
        row_bytes = self.row_bytes(values.shape[-1] if values.dim() else 0, values.dtype)
        if out is None:
            return values.contiguous().view(torch.uint8)
        check_tensor(f"codec {self.spec}, encode, out", out, (*values.shape[:-1], row_bytes), torch.uint8)
        return out.copy_(_as_bytes(values))

    def decode(
        self,
        data: torch.Tensor,
        dim: int,
        out: torch.Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> torch.Tensor:
        _, dtype = check_decode(self, data, dim, out, dtype)
        if out is None:
            size = dtype.itemsize
            aligned = data.storage_offset() % size == 0 and all(s % size == 0 for s in data.stride()[:-1])
            # contiguous() would return contiguous bytes as they are, with their odd storage offset. So copy in any case.
            return (data if aligned else data.clone(memory_format=torch.contiguous_format)).view(dtype)
        _as_bytes(out.detach()).copy_(data)
        return out

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        return torch.zeros(values.shape, dtype=torch.float32, device=values.device)


@dataclass(frozen=True, slots=True)
class Fp32(NoneCodec):
    """FP32 on the wire, for FP32 payloads. There ``none`` does the same; this name says so.

    It refuses a 16-bit payload, whose bytes it would double for nothing.
    """

    name: ClassVar[str] = "fp32"

    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int:
        check_dim(self, dim)
        return dim * 4

    def check_payload(self, dtype: torch.dtype) -> None:
        check_float(self, dtype)
        if dtype != torch.float32:
            raise CodecError(
                describe(
                    "codec fp32",
                    "the payload has 16 bits a value, which fp32 would double",
                    got=str(dtype),
                    allowed=str(torch.float32),
                    todo="Use 'none' to send the payload as it is.",
                )
            )


def _as_bytes(values: torch.Tensor) -> torch.Tensor:
    """The bytes of every row, as a view if the last dimension is contiguous."""
    return (values if values.stride(-1) == 1 or values.numel() == 0 else values.contiguous()).view(torch.uint8)
