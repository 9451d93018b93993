"""Moves bytes between ranks, under autograd; must not know tables' rules, TorchRec, or where a layout comes from."""

from torchrec_qcomm.collectives.exchange import Exchange, ExchangeLayout
from torchrec_qcomm.collectives.observer import Launch, Observer, Observers
from torchrec_qcomm.collectives.pack import pack, unpack
from torchrec_qcomm.collectives.range_headers import RangedBlocks, RangeHeadersOf
from torchrec_qcomm.collectives.reorder import from_wire, to_wire

__all__ = [
    "Exchange",
    "ExchangeLayout",
    "Launch",
    "Observer",
    "Observers",
    "RangeHeadersOf",
    "RangedBlocks",
    "from_wire",
    "pack",
    "to_wire",
    "unpack",
]
