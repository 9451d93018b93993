"""The value that names a codec: what a policy holds, and what ranks compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """The full name of a codec.

    Attributes:
        name: a registered codec name, for example ``int8``.
        params: every parameter of the codec, defaults included, sorted by name.
        short: how it is printed; not compared.

    >>> str(CodecSpec("fp16", (("loss_scale", 1024.0),)))
    'fp16(loss_scale=1024.0)'
    """

    name: str
    params: tuple[tuple[str, Any], ...] = ()
    short: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.short or (self.name + self._suffix())

    def _suffix(self) -> str:
        return f"({', '.join(f'{k}={v}' for k, v in self.params)})" if self.params else ""


CodecLike = str | Mapping[str, Any] | CodecSpec
"""What a user writes for a codec: its name, a mapping with ``codec`` and parameters, or a spec."""


def params_of(codec: object) -> tuple[tuple[str, Any], ...]:
    """The parameters of a codec written as a frozen dataclass: its fields, sorted by name."""
    return tuple(sorted((f.name, getattr(codec, f.name)) for f in fields(codec)))  # type: ignore[arg-type]


def spec_of(codec: object, name: str) -> CodecSpec:
    """The spec of a codec written as a frozen dataclass; printed with the parameters that are not at their default.

    A parameter ``bits`` is printed as part of the name: ``qsgd4``.
    """
    changed = {f.name for f in fields(codec) if getattr(codec, f.name) != f.default}  # type: ignore[arg-type]
    params = params_of(codec)
    short = CodecSpec(f"{name}{dict(params).get('bits', '')}", tuple(p for p in params if p[0] in changed - {"bits"}))
    return CodecSpec(name, params, short=str(short))
