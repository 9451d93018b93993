"""The words of a layout: what stands where, in values and in bytes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch

from torchrec_qcomm.codecs import Codec
from torchrec_qcomm.wire.traffic import Cell

LinkT = TypeVar("LinkT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Column:
    """One feature's vector in a rank's lookup: ``dim`` values of one table shard."""

    table: str
    dim: int


@dataclass(frozen=True, slots=True)
class Block:
    """What one codec call encodes or decodes: of each of ``rows`` samples, ``len(offsets)`` vectors of ``dim`` values.

    Attributes:
        offsets: for each vector of the first sample, where it starts in the flat tensor; the next sample's, ``stride`` on.
        byte_offset: where the bytes of the first sample start in the buffer; the next sample's, ``byte_stride`` on.
        tables: for each vector of a sample, its table; empty if the codec needs no range header.
        range_headers: for each vector of a sample, where its range header starts in the buffer; empty likewise.
    """

    codec: Codec
    dim: int
    rows: int
    offsets: tuple[int, ...]
    stride: int
    byte_offset: int
    byte_stride: int
    tables: tuple[str, ...] = ()
    range_headers: tuple[int, ...] = ()

    @property
    def adjacent(self) -> bool:
        """Whether the vectors of a sample follow each other without gaps."""
        return all(after - before == self.dim for before, after in pairwise(self.offsets))


@dataclass(frozen=True, slots=True)
class Layer:
    """Blocks over the values of a side, and the ``nbytes`` bytes from ``start`` on that they stand for.

    ``twin``: index of an earlier layer that has the same bytes when the same values are encoded, if there is one.
    """

    blocks: tuple[Block, ...]
    start: int
    nbytes: int
    twin: int | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """One end of an exchange at one rank: a tensor of values, and the buffer of bytes that stands for it.

    Attributes:
        layers: mostly one. With several, decoding adds them up, and encoding writes the same values into each.
        splits: bytes exchanged with each rank of the group, in rank order.
        cells: for each rank of the group, how much of each table; the wire bytes of a rank's cells add up to its split.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    layers: tuple[Layer, ...]
    splits: tuple[int, ...]
    cells: tuple[dict[str, Cell], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole buffer."""
        return sum(self.splits)
