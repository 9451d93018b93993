"""What a codec is. A *row* is one table shard's vector, for one sample (pooled) or one id (sequence).

A codec turns rows of ``dim`` values into rows of ``row_bytes(dim)`` bytes and back. It knows nothing of ranks, tables or steps,
and it keeps no state.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch

from torchrec_qcomm.codecs.parts.noise import Noise
from torchrec_qcomm.codecs.spec import CodecSpec


@runtime_checkable
class Codec(Protocol):
    """Rows of values <-> rows of bytes.

    Every codec takes any ``dim >= 1``, any number of rows (0 too), FP32, FP16 or BF16 values in any strides, and obeys:

    - same input, same bytes (from the same noise, if the codec is stochastic); an all-zero row decodes to exact zeros; a
      constant row to itself within the bound;
    - a non-finite value makes its whole row decode to NaN and touches no other row (``none`` and ``fp32`` move it as it is);
    - finite values outside the range that the format can hold saturate;
    - ``|decode(encode(x)) - x| <= error_bound(x)``, element by element.
    """

    @property
    def spec(self) -> CodecSpec:
        """The frozen value that names this codec fully."""
        ...

    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int:
        """Wire bytes of one row of ``dim`` values. ``dtype``, the payload's own, matters to ``none`` alone."""
        ...

    def check_payload(self, dtype: torch.dtype) -> None:
        """Raise ``CodecError`` if the codec does not take payloads of ``dtype``, or would make them larger."""
        ...

    @property
    def stochastic(self) -> bool:
        """Whether rounding is random, so that ``encode`` needs ``noise``."""
        ...

    @property
    def range_header_bytes(self) -> int:
        """Bytes of the range that all rows of a table share between two ranks; 0 for most codecs, whose rows need none."""
        ...

    def within(self, range_header: torch.Tensor) -> Codec:
        """This codec with the range that ``range_header`` (``uint8 [..., range_header_bytes]``) holds; itself if it needs none.

        The leading dimensions are broadcast against those of the values, less the first, which counts samples.
        """
        ...

    def encode(self, values: torch.Tensor, out: torch.Tensor | None = None, noise: Noise | None = None) -> torch.Tensor:
        """Encode ``values [..., dim]`` (FP32, FP16 or BF16, any strides) into ``uint8 [..., row_bytes(dim, values.dtype)]``.

        ``out``, if given, is written and returned; any strides, last dimension contiguous. ``noise`` is the random stream of a
        stochastic codec. ``CodecError``: the dtype is refused, or ``noise`` is missing. ``WireError``: ``out`` does not fit.
        """
        ...

    def decode(
        self, data: torch.Tensor, dim: int, out: torch.Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """Decode ``data`` (``uint8 [..., row_bytes(dim, dtype)]``, last dimension contiguous) into ``[..., dim]`` of ``dtype``.

        ``out`` as for `encode`; its dtype is the dtype then. ``WireError``: a shape or dtype is wrong.
        """
        ...

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        """The largest absolute error of each element: FP32, shaped as ``values``; rounding to a 16-bit dtype comes on top."""
        ...
