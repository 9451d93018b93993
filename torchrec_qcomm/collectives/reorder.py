"""Vectors from the order of a tensor to the order of the wire and back, differentiably."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from torchrec_qcomm.wire import Pieces


def to_wire(vectors: torch.Tensor, there: Pieces, back: Pieces) -> torch.Tensor:
    """Put vectors into wire order; their gradient comes back in a wire order of its own.

    One copy gathers the vectors of each destination, as TorchRec's own exchange does, and of each codec.

    Args:
        vectors: ``[rows, dim]``.
        there: how they are cut, and their order on the wire.
        back: the same for their gradient.
    """
    return _reorder(vectors, _from(there), _to(back))


def from_wire(vectors: torch.Tensor, there: Pieces, back: Pieces) -> torch.Tensor:
    """The counterpart of `to_wire`: ``there`` says what order the vectors have, ``back`` what order their gradient gets."""
    return _reorder(vectors, _to(there), _from(back))


def _reorder(vectors: torch.Tensor, there: _Order | None, back: _Order | None) -> torch.Tensor:
    return vectors if there is None and back is None else _Reorder.apply(vectors, there, back)


class _Reorder(torch.autograd.Function):
    """``index_select`` with two permutations; ``None`` leaves the order as it is."""

    @staticmethod
    def forward(ctx: Any, vectors: torch.Tensor, there: _Order | None, back: _Order | None) -> torch.Tensor:
        ctx.back = back
        return vectors.view_as(vectors) if there is None else vectors.index_select(0, there.index(vectors.device))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        back: _Order | None = ctx.back
        return gradient if back is None else gradient.index_select(0, back.index(gradient.device)), None, None


class _Order:
    """Pieces of a tensor in another order.

    Args:
        rows: of each piece, in the order that the tensor has.
        order: the pieces, in the order wanted.
    """

    def __init__(self, rows: Sequence[int], order: Sequence[int]) -> None:
        self._rows, self._order = rows, order

    def index(self, device: torch.device) -> torch.Tensor:
        """For each vector of the result, where it is in the tensor."""
        starts = [0, *accumulate(self._rows)]
        rows = [self._rows[piece] for piece in self._order]
        ends = list(accumulate(rows))
        shifts = [starts[piece] - end + size for piece, end, size in zip(self._order, ends, rows, strict=True)]
        total = ends[-1] if ends else 0
        # The sum of the pieces is known here, so that a GPU need not be asked for it.
        shift = torch.tensor(shifts, device=device).repeat_interleave(torch.tensor(rows, device=device), output_size=total)
        return shift + torch.arange(total, device=device)


def _from(pieces: Pieces) -> _Order | None:
    """Tensor to wire."""
    return None if _in_order(pieces) else _Order(pieces.rows, pieces.wire_order)


def _to(pieces: Pieces) -> _Order | None:
    """Wire to tensor."""
    if _in_order(pieces):
        return None
    places = sorted(range(len(pieces.wire_order)), key=pieces.wire_order.__getitem__)
    return _Order([pieces.rows[piece] for piece in pieces.wire_order], places)


def _in_order(pieces: Pieces) -> bool:
    """Whether the wire has the pieces in the order of the tensor; empty ones are nowhere."""
    order = [piece for piece in pieces.wire_order if pieces.rows[piece]]
    return order == sorted(order)
