"""Moves bytes between ranks, under autograd; must not know tables' rules, TorchRec, or where a layout comes from."""

from torchrec_qcomm.collectives.exchange import Exchange, Plan
from torchrec_qcomm.collectives.pack import HeadsOf, Segments, pack, unpack
from torchrec_qcomm.collectives.reorder import from_wire, to_wire

__all__ = ["Exchange", "HeadsOf", "Plan", "Segments", "from_wire", "pack", "to_wire", "unpack"]
