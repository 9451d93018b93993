"""Who sends which bytes to whom, and how many; knows ranks and sizes, must never see a value."""

from torchrec_qcomm.wire import sequence, variable
from torchrec_qcomm.wire.pooled import PooledLayout
from torchrec_qcomm.wire.reduce import ReduceLayout
from torchrec_qcomm.wire.sequence import Pieces
from torchrec_qcomm.wire.terms import Block, Column, Layer, Side
from torchrec_qcomm.wire.traffic import Cell, Flow, Traffic

__all__ = [
    "Block",
    "Cell",
    "Column",
    "Flow",
    "Layer",
    "Pieces",
    "PooledLayout",
    "ReduceLayout",
    "Side",
    "Traffic",
    "sequence",
    "variable",
]
