"""Memory for one call of a codec: buffers that are reused from chunk to chunk, and typed views of bytes."""

from __future__ import annotations

from math import prod

import torch


class Scratch:
    """Named buffers, allocated for the first chunk of a call and reused for the others. Their contents are arbitrary."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[str, torch.Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A contiguous buffer of ``shape``; the same memory for the same ``name``."""
        numel = prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < numel:
            buffer = self._buffers[name] = torch.empty(numel, dtype=dtype, device=self._device)
        return buffer[:numel].view(shape)


def typed(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """Bytes seen as ``dtype``, or None where offset or strides are not multiples of its size."""
    size = dtype.itemsize
    aligned = data.storage_offset() % size == 0 and all(s % size == 0 for s in data.stride()[:-1])
    return data.view(dtype) if aligned and data.stride(-1) == 1 else None


def read_as(data: torch.Tensor, dtype: torch.dtype, scratch: Scratch, name: str) -> torch.Tensor:
    """Read bytes as ``dtype``: a view where they are aligned, else a copy in ``scratch``. Not to be written to."""
    view = typed(data, dtype)
    return scratch.take(name, tuple(data.shape), torch.uint8).copy_(data).view(dtype) if view is None else view


def write_as(data: torch.Tensor, values: torch.Tensor, dtype: torch.dtype, scratch: Scratch, name: str) -> None:
    """Write ``values``, cast to ``dtype``, into the bytes ``data``, aligned or not."""
    view = typed(data, dtype)
    if view is None:
        data.copy_(scratch.take(name, tuple(values.shape), dtype).copy_(values).view(torch.uint8))
    else:
        view.copy_(values)
