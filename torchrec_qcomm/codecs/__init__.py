"""Turns rows of values into rows of bytes and back; it must not know of ranks, tables or steps, and keeps no state."""

from torchrec_qcomm.codecs.base import Codec
from torchrec_qcomm.codecs.parts.noise import Noise
from torchrec_qcomm.codecs.registry import backends, get, names, spec
from torchrec_qcomm.codecs.spec import CodecLike, CodecSpec

__all__ = ["Codec", "CodecLike", "CodecSpec", "Noise", "backends", "get", "names", "spec"]
