"""Errors in the user's input, which the user is told without a traceback."""

from __future__ import annotations

from collections.abc import Iterable

from torchrec_qcomm.errors import describe


class ExampleError(Exception):
    """Bad options, a bad file or a missing package."""


def bad(where: str, wrong: str, *, got: object, allowed: Iterable[object] | str = (), todo: str = "") -> ExampleError:
    """An ``ExampleError`` worded like the plugin's own errors.

    >>> str(bad("train.txt:3: label", "not a label", got="7", allowed=["0", "1"]))
    "train.txt:3: label: not a label; got '7'; allowed: 0, 1"
    """
    return ExampleError(describe(where, wrong, got=got, allowed=allowed, todo=todo))
