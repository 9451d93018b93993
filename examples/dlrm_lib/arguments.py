"""Types for ``argparse``: what the command lines of the examples accept, and how they refuse anything else."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def count(text: str) -> int:
    """A whole number, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a count: {text!r}; allowed: a whole number, 1 or more")
    return int(text)


def seed(text: str) -> int:
    """A whole number that torch's generators take."""
    if not text.isdecimal() or int(text) >= 2**64:
        raise argparse.ArgumentTypeError(f"not a seed: {text!r}; allowed: a whole number from 0 to 2**64 - 1")
    return int(text)


def positive(text: str) -> float:
    """A learning rate."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"not a learning rate: {text!r}; allowed: a number above 0")
    return value


def output_file(text: str) -> str:
    """A file that can be written. This is checked before the work, not after it.

    Only rank 0 checks, since only rank 0 writes: another host need not have the folder.
    """
    if os.environ.get("RANK", "0") != "0":
        return text
    path = Path(text).absolute()
    if os.path.isdir(path):
        raise argparse.ArgumentTypeError(f"a folder: {text!r}; allowed: a file")
    target = path if os.path.exists(path) else path.parent
    if not os.path.isdir(path.parent) or not os.access(target, os.W_OK):
        allowed = "a file that can be written, or a new one in a folder that can"
        raise argparse.ArgumentTypeError(f"cannot write there: {text!r}; allowed: {allowed}")
    return text
