"""Walking a payload chunk by chunk.

On a CPU a payload is walked in chunks that stay in the cache: every codec makes several passes over its values, and both a pass
through main memory and a fresh large allocation (page faults) cost more than the arithmetic. On an accelerator one pass takes
all.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch

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


def chunk_rows(device: torch.device, dim: int) -> int:
    """The largest number of rows in a chunk of vectors of ``dim`` values."""
    return max(1, CHUNK_BYTES // (4 * dim)) if device.type == "cpu" else 1 << 62
