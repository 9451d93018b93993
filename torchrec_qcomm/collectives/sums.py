"""Sides with several layers, for a reduce-scatter: equal bytes are encoded once, and layers are added up.

Codes are never added: every layer is decoded, and summed in FP32 in the order of ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchrec_qcomm.collectives.views import vectors_of
from torchrec_qcomm.wire import Layer, Side


def copy_twins(buffer: torch.Tensor, side: Side) -> None:
    """Copy the bytes of each layer that has an earlier twin from that."""
    for layer in side.layers:
        if layer.twin is not None:
            first = side.layers[layer.twin]
            buffer[layer.start :][: layer.nbytes].copy_(buffer[first.start :][: first.nbytes])


def add_layers(side: Side, out: torch.Tensor, decode: Callable[[Layer, torch.Tensor], None], whole: bool) -> None:
    """Write the sum of the layers of ``side`` into ``out``.

    Args:
        side: with several layers.
        out: ``side.shape`` of ``side.dtype``.
        decode: decodes a layer into a tensor of that shape, where its blocks are.
        whole: the blocks of a layer cover all of ``out``; else the rest of it stays as it is.
    """
    new = torch.empty_like if whole else torch.zeros_like
    total = out if out.dtype == torch.float32 else new(out, dtype=torch.float32)
    decode(side.layers[0], total)
    part = new(total)
    for layer in side.layers[1:]:
        decode(layer, part)
        total += part
    if total is out:
        return
    if whole:
        out.copy_(total)
        return
    for block in side.layers[0].blocks:
        for offset in block.offsets:
            vectors_of(out, block, offset).copy_(vectors_of(total, block, offset))
