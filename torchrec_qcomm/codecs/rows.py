"""What row-wise codecs share: walking a payload chunk by chunk, and looking at rows.

On a CPU a payload is walked in chunks that stay in the cache: every codec makes several passes over its values, and both a pass
through main memory and a fresh large allocation (page faults) cost more than the arithmetic. On an accelerator one pass takes
all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from math import inf, prod

import torch

from torchrec_qcomm.codecs.base import Codec, CodecDefaults, check_decode, check_float, check_tensor
from torchrec_qcomm.codecs.parts.memory import Scratch
from torchrec_qcomm.codecs.parts.noise import Draw, Noise
from torchrec_qcomm.errors import CodecError, describe

CHUNK_BYTES = 1 << 21
"""FP32 bytes of values in one chunk: few enough to stay in the cache, enough to make the calls on single rows' scales cheap."""


def chunks(source: torch.Tensor, target: torch.Tensor, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Cut two tensors with equal leading dimensions into views of at most ``rows`` rows each.

    Args:
        source: ``[..., a]``, any strides.
        target: ``[..., b]``, any strides; the views write through to it.
        rows: the largest number of rows in a chunk.

    Yields:
        ``source`` and ``target`` views ``[*lead, a]`` and ``[*lead, b]``; ``lead`` has one dimension where the strides allow
        it.
    """
    if source.numel() == 0:
        return
    if source.dim() == 1:
        source, target = source.unsqueeze(0), target.unsqueeze(0)
    for i in reversed(range(source.dim() - 2)):
        if all(_mergeable(t, i) for t in (source, target)):
            source, target = (t.view(*t.shape[:i], -1, *t.shape[i + 2 :]) for t in (source, target))
    yield from _split(source, target, rows)


def _mergeable(tensor: torch.Tensor, i: int) -> bool:
    """Whether dimensions ``i`` and ``i + 1`` are one dimension in memory."""
    return 1 in tensor.shape[i : i + 2] or tensor.stride(i) == tensor.stride(i + 1) * tensor.shape[i + 1]


def _split(source: torch.Tensor, target: torch.Tensor, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    inner = prod(source.shape[1:-1])
    if inner > rows:
        for one, other in zip(source, target, strict=True):
            yield from _split(one, other, rows)
        return
    step = max(1, rows // inner)
    for start in range(0, source.shape[0], step):
        length = min(step, source.shape[0] - start)
        yield source.narrow(0, start, length), target.narrow(0, start, length)


def extremes(x: torch.Tensor, scratch: Scratch) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest and largest value of every row, ``[..., 1]`` each; NaN in both for a row that holds a NaN."""
    shape = (*x.shape[:-1], 1)
    low, high = scratch.take("low", shape), scratch.take("high", shape)
    torch.amin(x, dim=-1, keepdim=True, out=low)  # two passes: torch.aminmax is slow along a dimension
    torch.amax(x, dim=-1, keepdim=True, out=high)
    return low, high


def finite_amax(x: torch.Tensor) -> float | None:
    """The largest magnitude in a chunk; None if it holds a NaN or Inf, and on an accelerator, where asking would wait for it.

    One pass that replaces two and most of the row-wise arithmetic, for chunks with nothing special in them.
    """
    if x.device.type != "cpu":
        return None
    low, high = torch.aminmax(x)
    amax = max(-low.item(), high.item())
    return amax if amax < inf else None  # false for NaN, which both are if there is one


def half_range(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Half of ``high - low``, which cannot overflow: finite for a row of finite values, and NaN or Inf for any other."""
    return high.mul(0.5).sub_(low, alpha=0.5)


def spoil(scale: torch.Tensor, witness: torch.Tensor) -> torch.Tensor:
    """Make ``scale`` NaN in the rows where ``witness`` is not finite, in place and without a branch."""
    return scale.add_(witness, alpha=0.0)


def bound_inputs(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values, row minimum and row maximum in FP64, for error bounds."""
    x = values.detach().to(torch.float64)
    return x, x.amin(dim=-1, keepdim=True), x.amax(dim=-1, keepdim=True)


def finish_bound(bound: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """FP64 bound to FP32, rounded up; infinite for the rows that decode to NaN, which promise nothing."""
    finite = (low - low + high - high) == 0
    bound = torch.where(finite, bound, torch.inf).to(torch.float32)
    return torch.nextafter(bound, torch.full_like(bound, torch.inf))


class RowCodec(CodecDefaults, ABC):
    """A codec that treats every row alike and alone: checks, chunks and dtypes are done here, the subclass brings the
    arithmetic.

    A subclass is a frozen dataclass whose fields are its parameters. Its two bodies see FP32 values and write every byte or
    value of their target.
    """

    __slots__ = ()

    @abstractmethod
    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int: ...

    @abstractmethod
    def error_bound(self, values: torch.Tensor) -> torch.Tensor: ...

    def within(self, head: torch.Tensor) -> Codec:
        return self

    @abstractmethod
    def _encode_rows(self, x: torch.Tensor, rows: torch.Tensor, scratch: Scratch, draw: Draw | None) -> None:
        """Encode FP32 ``x [*lead, dim]`` (contiguous, not to be written to) into ``rows [*lead, row_bytes]``.

        ``draw`` is there if and only if the codec is stochastic.
        """

    @abstractmethod
    def _decode_rows(self, rows: torch.Tensor, x: torch.Tensor, scratch: Scratch) -> None:
        """Decode ``rows [*lead, row_bytes]`` into FP32 ``x [*lead, dim]``."""

    def _parts(self, source: torch.Tensor, target: torch.Tensor, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """How a payload is cut: see `chunks`."""
        return chunks(source, target, rows)

    def check_payload(self, dtype: torch.dtype) -> None:
        check_float(self, dtype)

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
        for part, rows in self._parts(values.detach(), out, _chunk_rows(values.device, dim)):
            # Several passes follow, and the reductions among them are slow on strides: a copy pays for itself.
            direct = part.dtype == torch.float32 and part.is_contiguous()
            x = part if direct else scratch.take("input", tuple(part.shape)).copy_(part)
            self._encode_rows(x, rows, scratch, draw)
        return out

    def decode(
        self,
        data: torch.Tensor,
        dim: int,
        out: torch.Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> torch.Tensor:
        shape, dtype = check_decode(self, data, dim, out, dtype)
        if out is None:
            out = torch.empty(shape, dtype=dtype, device=data.device)
        scratch = Scratch(data.device)
        for rows, x in self._parts(data, out.detach(), _chunk_rows(data.device, dim)):
            if dtype == torch.float32:
                self._decode_rows(rows, x, scratch)
            else:
                full = scratch.take("output", tuple(x.shape))
                self._decode_rows(rows, full, scratch)
                # Half a step above the largest FP16 would be infinite there: a codec's error must not become an overflow.
                limit = torch.finfo(dtype).max
                x.copy_(full.clamp_(-limit, limit))
        return out


def _chunk_rows(device: torch.device, dim: int) -> int:
    return max(1, CHUNK_BYTES // (4 * dim)) if device.type == "cpu" else 1 << 62
