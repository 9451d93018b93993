"""Names to codecs: the one list of what exists, and the check of what a user wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torchrec_qcomm.codecs import ranges
from torchrec_qcomm.codecs.base import Codec, CodecLike, CodecSpec
from torchrec_qcomm.codecs.clipped import Clipped
from torchrec_qcomm.codecs.fp8 import Fp8E4M3, Fp8E5M2
from torchrec_qcomm.codecs.half import Bf16, Fp16
from torchrec_qcomm.codecs.int2 import Int2
from torchrec_qcomm.codecs.int4 import Int4
from torchrec_qcomm.codecs.int8 import Int8, Int8Fbgemm
from torchrec_qcomm.codecs.lut import Lut2, Lut4
from torchrec_qcomm.codecs.mx import Mxfp4, Mxfp8
from torchrec_qcomm.codecs.natural import Natural
from torchrec_qcomm.codecs.one_range import Int4OneRange, Int8OneRange
from torchrec_qcomm.codecs.onebit import OneBit
from torchrec_qcomm.codecs.qsgd import Qsgd
from torchrec_qcomm.codecs.raw import Fp32, NoneCodec
from torchrec_qcomm.codecs.sign import Sign
from torchrec_qcomm.codecs.ternary import Ternary
from torchrec_qcomm.errors import CodecError, describe

# One line a codec: its backends, the slowest (and the oracle of the tests) first, the default last.
_REGISTRY: dict[str, dict[str, type[Any]]] = {
    "none": {"reference": NoneCodec},
    "fp32": {"reference": Fp32},
    "fp16": {"reference": Fp16},
    "bf16": {"reference": Bf16},
    "fp8_e4m3": {"reference": Fp8E4M3},
    "fp8_e5m2": {"reference": Fp8E5M2},
    "mxfp8": {"reference": Mxfp8},
    "int8": {"reference": Int8, "fbgemm": Int8Fbgemm},
    "natural": {"reference": Natural},
    "mxfp4": {"reference": Mxfp4},
    "int4": {"reference": Int4},
    "lut4": {"reference": Lut4},
    "qsgd": {"reference": Qsgd},
    "int2": {"reference": Int2},
    "lut2": {"reference": Lut2},
    "ternary": {"reference": Ternary},
    "onebit": {"reference": OneBit},
    "sign": {"reference": Sign},
}

_OF_TABLE: dict[str, type[Any]] = {"int8": Int8OneRange, "int4": Int4OneRange}
"""The codecs that take a ``range``, and what they are when the rows of a table share it; whatever the backend."""


def names() -> tuple[str, ...]:
    """The names of all codecs, from the most to the fewest bits."""
    return tuple(_REGISTRY)


def backends(name: str) -> tuple[str, ...]:
    """The implementations that a codec has; the default is the last.

    >>> backends("int8")
    ('reference', 'fbgemm')
    """
    return tuple(_entry(name))


def get(like: CodecLike, backend: str | None = None) -> Codec:
    """Build a codec.

    Args:
        like: a name, a mapping with ``codec`` and parameters (as YAML has it), or a spec.
        backend: ``reference`` or ``fbgemm``; None for the fastest. The wire format is the same, so it is not part of the spec.

    Raises:
        CodecError: no such codec, parameter, value or backend.

    >>> get({"codec": "fp16", "loss_scale": 1024}).row_bytes(128)
    256
    """
    name, params = _parse(like)
    entry = _entry(name)
    wanted = ranges.parse(f"codec {name}, range", params.pop("range", None))
    if wanted is not None and name not in _OF_TABLE:
        wrong, rest = "this codec knows no range but each row's own", f"row; others with {', '.join(_OF_TABLE)}"
        raise CodecError(describe(f"codec {name}, range", wrong, got=str(wanted), allowed=rest))
    backend = list(entry)[-1] if backend is None else backend
    if backend not in entry:
        raise CodecError(describe(f"codec {name}", "no such backend", got=backend, allowed=entry))
    allowed = [f.name for f in fields(entry[backend])]
    for param in params:
        if param not in allowed:
            known = [*allowed, "range"] if name in _OF_TABLE else allowed
            raise CodecError(describe(f"codec {name}", "unknown parameter", got=param, allowed=known or "no parameters"))
    if wanted is not None and wanted.of_table:
        return _OF_TABLE[name](**params, range=wanted)
    codec: Codec = entry[backend](**params)
    return codec if wanted is None else Clipped(codec, wanted)  # type: ignore[arg-type]


def spec(like: CodecLike) -> CodecSpec:
    """Check what a user wrote, and name it fully.

    Raises:
        CodecError: no such codec, parameter or value.

    >>> spec("bf16")
    CodecSpec(name='bf16', params=(('loss_scale', 1.0), ('rounding', 'nearest')), short='bf16')
    """
    return get(like).spec


def _entry(name: str) -> dict[str, type[Any]]:
    if name not in _REGISTRY:
        raise CodecError(describe("codec", "unknown codec", got=name, allowed=names()))
    return _REGISTRY[name]


def _parse(like: CodecLike) -> tuple[str, dict[str, Any]]:
    if isinstance(like, CodecSpec):
        return like.name, dict(like.params)
    if isinstance(like, str):
        return like, {}
    if isinstance(like, Mapping) and isinstance(like.get("codec"), str):
        return like["codec"], {key: value for key, value in like.items() if key != "codec"}
    raise CodecError(
        describe("codec", "cannot be read", got=like, allowed="a name, or a mapping with 'codec' and its parameters")
    )
