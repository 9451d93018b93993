"""What row-wise codecs share: checks, chunks and dtypes. A format brings the arithmetic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch

from torchrec_qcomm.codecs.base import Codec
from torchrec_qcomm.codecs.checks import check_decode, check_float, check_tensor
from torchrec_qcomm.codecs.defaults import CodecDefaults
from torchrec_qcomm.codecs.parts.chunks import chunk_rows, chunks
from torchrec_qcomm.codecs.parts.memory import Scratch
from torchrec_qcomm.codecs.parts.noise import Draw, Noise
from torchrec_qcomm.errors import CodecError, describe


class RowCodec(CodecDefaults, ABC):
    """A codec that treats every row alike and alone. Its two bodies see FP32 values and write all of their target."""

    __slots__ = ()

    @abstractmethod
    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int: ...

    @abstractmethod
    def error_bound(self, values: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def _encode_rows(self, x: torch.Tensor, rows: torch.Tensor, scratch: Scratch, draw: Draw | None) -> None:
        """Encode FP32 ``x [*lead, dim]`` (contiguous, not to be written to) into ``rows [*lead, row_bytes]``.

        ``draw`` is there if and only if the codec is stochastic.
        """

    @abstractmethod
    def _decode_rows(self, rows: torch.Tensor, x: torch.Tensor, scratch: Scratch) -> None:
        """Decode ``rows [*lead, row_bytes]`` into FP32 ``x [*lead, dim]``."""

    def within(self, range_header: torch.Tensor) -> Codec:
        return self

    def check_payload(self, dtype: torch.dtype) -> None:
        check_float(self, dtype)

    def _chunks(self, source: torch.Tensor, target: torch.Tensor, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """How a payload is cut: see `parts.chunks`."""
        return chunks(source, target, rows)

    def encode(self, values: torch.Tensor, out: torch.Tensor | None = None, noise: Noise | None = None) -> torch.Tensor:
        self.check_payload(values.dtype)
        if self.stochastic and noise is None:
            todo = "Pass codecs.Noise(seed, step, rank, site)."
            raise CodecError(describe(f"codec {self.spec}, encode, noise", "needed", got=None, allowed="a Noise", todo=todo))
        draw = Draw(noise, values.device) if self.stochastic and noise is not None else None
        dim = values.shape[-1] if values.dim() else 0
        shape = (*values.shape[:-1], self.row_bytes(dim, values.dtype))
        if out is None:
            out = torch.empty(shape, dtype=torch.uint8, device=values.device)
        else:
            check_tensor(f"codec {self.spec}, encode, out", out, shape, torch.uint8)
        scratch = Scratch(values.device)
        for part, rows in self._chunks(values.detach(), out, chunk_rows(values.device, dim)):
            # Several passes follow, and the reductions among them are slow on strides: a copy pays for itself.
            direct = part.dtype == torch.float32 and part.is_contiguous()
            x = part if direct else scratch.take("input", tuple(part.shape)).copy_(part)
            self._encode_rows(x, rows, scratch, draw)
        return out

    def decode(
        self, data: torch.Tensor, dim: int, out: torch.Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        shape, dtype = check_decode(self, data, dim, out, dtype)
        if out is None:
            out = torch.empty(shape, dtype=dtype, device=data.device)
        scratch = Scratch(data.device)
        for rows, x in self._chunks(data, out.detach(), chunk_rows(data.device, dim)):
            if dtype == torch.float32:
                self._decode_rows(rows, x, scratch)
            else:
                full = scratch.take("output", tuple(x.shape))
                self._decode_rows(rows, full, scratch)
                # Half a step above the largest FP16 would be infinite there: a codec's error must not become an overflow.
                limit = torch.finfo(dtype).max
                x.copy_(full.clamp_(-limit, limit))
        return out
