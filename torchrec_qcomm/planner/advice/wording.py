"""The lines of YAML that advice ends with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_SHOWN = 3


def shown(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more tables" if len(names) > _SHOWN else "")


def glob_of(name: str) -> str:
    """A glob that matches this name alone."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


def quoted(text: str) -> str:
    """Text as YAML reads it back, whatever is in it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def flow_list(texts: Iterable[str]) -> str:
    """``["a", "b"]``."""
    return f"[{', '.join(map(quoted, texts))}]"


def precision_rule(globs: Iterable[str], forward: str, backward: str) -> str:
    """A rule for tables, to be put before the others."""
    rule = f"    - {{tables: {flow_list(globs)}, forward: {forward}, backward: {backward}}}"
    return f"precision:\n  rules:  # before the other rules\n{rule}"


def constraint(names: Sequence[str], sharding_type: str, **more: object) -> str:
    """A constraint of the planner."""
    extra = "".join(f", {key}: {value}" for key, value in more.items())
    entry = f"  - {{tables: {flow_list(map(glob_of, names))}, sharding_types: [{sharding_type}]{extra}}}"
    return f"sharding:  # before the other entries: the first that matches wins\n{entry}"
