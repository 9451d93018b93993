"""Names to codecs: the one list of what exists, and the check of what a user wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torchrec_qcomm.codecs.backends import fbgemm, reference
from torchrec_qcomm.codecs.base import Codec
from torchrec_qcomm.codecs.formats.clipped import Clipped
from torchrec_qcomm.codecs.formats.one_range import Int4OneRange, Int8OneRange
from torchrec_qcomm.codecs.parts import ranges
from torchrec_qcomm.codecs.spec import CodecLike, CodecSpec
from torchrec_qcomm.errors import CodecError, describe

_BACKENDS: dict[str, dict[str, type[Any]]] = {"reference": reference.FORMATS, "fbgemm": fbgemm.FORMATS}
"""The slowest (and the oracle of the tests) first; the default of a codec is the last that has it."""

_OF_TABLE: dict[str, type[Any]] = {"int8": Int8OneRange, "int4": Int4OneRange}
"""The codecs that take a ``range``, and what they are when the rows of a table share it; whatever the backend."""


def names() -> tuple[str, ...]:
    """The names of all codecs, from the most to the fewest bits."""
    return tuple(reference.FORMATS)


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
    if name not in names():
        raise CodecError(describe("codec", "unknown codec", got=name, allowed=names()))
    return {backend: formats[name] for backend, formats in _BACKENDS.items() if name in formats}


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
