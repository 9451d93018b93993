"""Turns pydantic's errors into the package's wording: file, key path, the value, what is allowed, the nearest known name."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from torchrec_qcomm.errors import ConfigError, QCommError, describe

Path = tuple[int | str, ...]


def raise_problems(source: str, problems: Iterable[str]) -> None:
    """Raise one ``ConfigError`` with all the problems, if there are any."""
    listed = list(problems)
    if len(listed) == 1:
        raise ConfigError(listed[0])
    if listed:
        raise ConfigError("\n  ".join([f"{source}: {len(listed)} problems:", *listed]))


def worded_empty(paths: Iterable[Path], source: str) -> list[str]:
    """The problems of keys without a value. A rule with an empty ``forward:`` must not pass as one that does not say it."""
    todo = "Leave the key out to say nothing; the codec that changes nothing is written `none`."
    return [
        describe(_at(source, path), "a key with no value", got=None, allowed="a value", todo=todo)
        for path in sorted(paths, key=str)
    ]


def problems_of(error: ValidationError, source: str, model: type[BaseModel], known: Collection[Path] = ()) -> list[str]:
    """The problems of a failed validation of ``model``, worded. Those at or just above the paths in ``known`` are left out."""
    skipped = {*known, *(path[:-1] for path in known)}
    return [_problem(detail, source, model) for detail in error.errors(include_url=False) if detail["loc"] not in skipped]


def _problem(detail: ErrorDetails, source: str, model: type[BaseModel]) -> str:
    loc, got, kind = detail["loc"], detail["input"], detail["type"]
    context = detail.get("ctx", {})
    where = _at(source, loc)
    if kind == "extra_forbidden":
        return describe(where, "unknown key", got=loc[-1], allowed=_keys_at(model, loc[:-1]))
    if kind == "invalid_key":
        return describe(where, "a key that is not text", got=got, allowed=_keys_at(model, loc[:-1]))
    if kind == "missing":
        keys = sorted(map(str, got)) if isinstance(got, dict) else got
        return describe(where, "a required key is missing", got=keys, allowed=_keys_at(model, loc[:-1]))
    if kind == "qcomm":
        return describe(where, context["wrong"], got=got, allowed=context["allowed"])
    cause = context.get("error")
    if isinstance(cause, QCommError):  # from the codecs or the policy, and worded there
        return _prefixed(source, loc, str(cause))
    if kind in ("model_type", "model_attributes_type"):
        return describe(where, "not a mapping", got=got, allowed=_keys_at(model, loc))
    if kind == "tuple_type":
        return describe(where, "not a list", got=got, allowed="a list")
    allowed = detail["msg"].removeprefix("Input should be ")
    return describe(where, "wrong value", got=got, allowed=allowed, todo=_number_hint(got, kind))


def _at(source: str, loc: Path) -> str:
    return f"{source}: {'.'.join(map(str, loc))}" if loc else source


def _prefixed(source: str, loc: Path, text: str) -> str:
    # `where.min_rows: ...` found at precision.rules.0.where reads better as precision.rules.0.where.min_rows: ...
    if loc and text.startswith((f"{loc[-1]}.", f"{loc[-1]}:")):
        return f"{_at(source, loc[:-1])}.{text}"
    return f"{_at(source, loc)}: {text}"


def _number_hint(got: object, kind: str) -> str:
    if not isinstance(got, str) or not kind.startswith(("int", "float")):
        return ""
    try:
        float(got)
    except ValueError:
        return ""
    return "YAML reads this as text: write numbers without quotes, and exponents as in 1.0e+6."


def _keys_at(model: type[BaseModel], loc: Path) -> list[str]:
    """The keys that the block at a path may have."""
    at: Any = model
    for part in loc:
        at = _item(at) if isinstance(part, int) else _block(at).model_fields[part].annotation
    return sorted(_block(at).model_fields)


def _block(annotation: Any) -> type[BaseModel]:
    """The model of ``Model`` or ``Model | None``."""
    blocks = [arg for arg in (annotation, *get_args(annotation)) if isinstance(arg, type) and issubclass(arg, BaseModel)]
    return blocks[0]


def _item(annotation: Any) -> Any:
    """``X`` of ``tuple[X, ...]``."""
    return get_args(annotation)[0]
