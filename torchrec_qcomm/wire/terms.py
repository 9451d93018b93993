"""The words of a layout: what stands where in values and bytes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from torchrec_qcomm.codecs import Codec
from torchrec_qcomm.wire.traffic import Cell

LinkT = TypeVar("LinkT", bound=Hashable)
_Link = TypeVar("_Link", bound=Hashable, contravariant=True)


class CodecOf(Protocol[_Link]):
    """The codec of a table on a link."""

    def __call__(self, table: str, *, link: _Link) -> Codec: ...


@dataclass(frozen=True, slots=True)
class Column:
    """One feature's vector in a rank's lookup: ``dim`` values of one table shard."""

    table: str
    dim: int


@dataclass(frozen=True, slots=True)
class Block:
    """Rows that one codec call encodes or decodes: ``rows`` x ``len(offsets)`` vectors of ``dim`` values.

    Attributes:
        codec: the codec of all of them.
        dim: values in each vector.
        rows: number of samples.
        offsets: where the vectors of the first sample start, in values, in the flat tensor.
        stride: values from one sample to the next.
        byte_offset: where the first sample's bytes start in the buffer.
        byte_stride: bytes from one sample to the next.
        tables: of each vector of a sample, and
        heads: where in the buffer its range stands; both empty unless the codec needs one.
    """

    codec: Codec
    dim: int
    rows: int
    offsets: tuple[int, ...]
    stride: int
    byte_offset: int
    byte_stride: int
    tables: tuple[str, ...] = ()
    heads: tuple[int, ...] = ()

    @property
    def adjacent(self) -> bool:
        """Whether the vectors of a sample lie one behind the other."""
        return all(after - before == self.dim for before, after in zip(self.offsets, self.offsets[1:], strict=False))


@dataclass(frozen=True, slots=True)
class Layer:
    """Blocks that cover all values of a side once, and the bytes that they stand for.

    Attributes:
        blocks: what to encode or decode.
        start: where the bytes of the layer start in the buffer.
        nbytes: how many there are.
        twin: index of an earlier layer whose bytes are the same when the same values are encoded.
    """

    blocks: tuple[Block, ...]
    start: int
    nbytes: int
    twin: int | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """One end of an exchange at one rank: a tensor of values and the buffer that stands for it.

    Attributes:
        shape: of the values.
        dtype: of the values.
        layers: mostly one. With several, decoding sums them, and encoding writes the same values into each.
        splits: bytes exchanged with each rank of the group, in rank order.
        cells: for each rank of the group, ``{table: Cell}``; the wire bytes of a rank's cells sum to its split.
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
