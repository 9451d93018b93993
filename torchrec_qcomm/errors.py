"""The error tree, and the one way in which its messages are worded.

    QCommError
    ├── CodecError           a codec or one of its parameters does not exist, or does not fit the values given to it
    ├── PolicyError          a rule makes no sense, alone or with the tables that it meets
    ├── ConfigError          a YAML file is wrong; names file, key path, value and what is allowed
    ├── ShardingError        a sharding cannot be exchanged, or the settings of a sharder would give wrong results silently
    ├── PlannerError         no forecast can be made of a plan or of machines, or a file is not what was exported
    ├── WireError            bytes have the wrong shape or size, so a message cannot be laid out or read
    └── DisagreementError    ranks do not share one policy, plan or code version; raised at start-up

Messages read ``<where>: <what is wrong>; got <x>; allowed: <sorted list>. <what to do next>``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class QCommError(Exception):
    """The base class of all errors that this package raises on purpose."""


class CodecError(QCommError, ValueError):
    """A codec or a codec parameter is unknown or cannot be used as asked."""


class PolicyError(QCommError, ValueError):
    """A rule is wrong, or matches no table."""


class ConfigError(QCommError, ValueError):
    """A configuration file is wrong."""


class ShardingError(QCommError, ValueError):
    """A table, sharding type or setting of a sharder cannot be exchanged as asked."""


class WireError(QCommError, ValueError):
    """Values or bytes do not have the size that the layout says."""


class PlannerError(QCommError, ValueError):
    """No forecast can be made of a plan or of the machines."""


class DisagreementError(QCommError, RuntimeError):
    """The ranks of a process group do not agree on what they will exchange."""


_SHOWN = 300
"""Characters of an offending value that a message shows."""


def describe(
    where: str,
    wrong: str,
    *,
    got: object,
    allowed: Iterable[object] | str = (),
    todo: str = "",
) -> str:
    """The text of an error, worded as in the whole package.

    Args:
        where: the place: a file and key path, a table, a function's argument.
        wrong: what is wrong there, in a few words.
        got: the offending value. If it is close to an allowed one, the text adds "did you mean".
        allowed: the allowed values (sorted here), or a sentence when they cannot be listed.
        todo: what the reader can do next.

    Returns:
        ``where: wrong; got 'x'; allowed: a, b. Did you mean 'a'? todo``.

    >>> describe("rules.0.forward", "unknown codec", got="int5", allowed=["int8", "int4"])
    "rules.0.forward: unknown codec; got 'int5'; allowed: int4, int8. Did you mean 'int8'?"
    """
    names = [] if isinstance(allowed, str) else sorted(str(name) for name in allowed)
    listing = allowed if isinstance(allowed, str) else ", ".join(names)
    shown = repr(got)
    if len(shown) > _SHOWN:
        shown = f"{shown[:_SHOWN]}... ({len(shown):,} characters)"
    text = f"{where}: {wrong}; got {shown}"
    if listing:
        text += f"; allowed: {listing}"
    close = difflib.get_close_matches(got, names, n=1) if isinstance(got, str) else []
    if close:
        text += f". Did you mean {close[0]!r}?"
    if todo:
        text += f" {todo}" if close else f". {todo}"
    return text
