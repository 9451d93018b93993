"""What one table takes on the wire between two ranks: rows, and once for all of them what the codec sends beside them.

The arithmetic that layouts and forecasts share. Numbers of rows may be arrays, which are then worked out element by element.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch

from torchrec_qcomm.codecs import Codec

Rows = TypeVar("Rows", int, np.ndarray)


def rows_bytes(codec: Codec, dim: int, rows: Rows, dtype: torch.dtype) -> Rows:
    """Bytes of ``rows`` vectors of ``dim`` values of a payload of ``dtype``."""
    return rows * codec.row_bytes(dim, dtype)


def head_bytes(codec: Codec, rows: Rows) -> Rows:
    """Bytes that travel once for ``rows`` vectors of one table, whatever their dims: none where there is no row."""
    return (rows > 0) * codec.segment_bytes
