"""Globs over table names: what matches, what matches nothing, and how that is said."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from torchrec_qcomm.errors import describe

_SHOWN = 40


def matches(name: str, globs: Iterable[str]) -> bool:
    """Whether any of the globs matches; case counts."""
    return any(fnmatchcase(name, glob) for glob in globs)


def without_match(globs: Iterable[str], names: Collection[str]) -> tuple[str, ...]:
    """The globs that match none of the names."""
    return tuple(glob for glob in globs if not any(fnmatchcase(name, glob) for name in names))


def unmatched_glob(
    where: str, glob: str, table_names: Iterable[str], todo: str = "Write `allow_unmatched: true` if that is meant."
) -> str:
    """Word the error for a glob that matches none of the tables, with the nearest table name."""
    names = sorted(set(table_names))
    shown = ", ".join(names[:_SHOWN]) + (f", ... ({len(names)} tables)" if len(names) > _SHOWN else "")
    near = difflib.get_close_matches(glob, names, n=1) or difflib.get_close_matches(glob.strip("*?"), names, n=1)
    hint = f"Did you mean {near[0]!r}? {todo}" if near else todo
    return describe(where, "matches no table", got=glob, allowed=shown or "(there are no tables)", todo=hint.strip())
