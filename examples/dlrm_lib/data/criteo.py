"""The Criteo Kaggle display advertising file, ``train.txt``.

One line per impression, tab-separated, no header: label (0 or 1), 13 integers, 26 categories of up to 8 hex digits; an empty
field is missing; blank lines at the end are left out. Integers become ``sign(x) * log(1 + |x|)``, a missing one 0. Categories
are hashed into tables of a chosen number of rows; row 0 is the missing category.

The lines are in the order of time, so the last part of the lines read is held out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TextIO

import numpy as np
import torch

from dlrm_lib.data.base import ClickData, Ids, TableSpec
from dlrm_lib.errors import bad

INTEGERS, CATEGORIES = 13, 26
FIELDS = 1 + INTEGERS + CATEGORIES
FIELD_NAMES = ("label", *(f"int_{i}" for i in range(INTEGERS)), *(f"cat_{i}" for i in range(CATEGORIES)))
TEST_SHARE = 0.2
CHUNK = 50_000  # lines that are held as text at the same time, since a list of 40 strings per line is large

_INTEGER = re.compile(r"-?[0-9]{1,15}")
_HEX = re.compile(r"[0-9a-fA-F]{1,8}")


def load_criteo(path: str | Path, rows: int, max_lines: int | None = None, seed: int = 0) -> ClickData:
    """Read a Criteo file.

    Args:
        path: of the file.
        rows: of each of the 26 tables, at least 2.
        max_lines: read only the first so many lines; None reads all of them, into memory.
        seed: of the hash.

    Raises:
        ExampleError: the file cannot be read, or a line is wrong; names file, line, field and value.
    """
    if rows < 2:
        raise bad("--criteo-rows", "too few rows", got=rows, allowed="2 or more: row 0 is the missing category")
    path = Path(path)
    labels, integers, categories = [], [], []
    try:
        # latin-1 reads any byte, so that a binary file ends in an error that names a line
        with path.open(encoding="latin-1") as file:
            for first, lines in _chunks(file, max_lines):
                columns = _columns(path, first, lines)
                labels.append(_parse(path, first, columns, 0, _label, "0, 1"))
                integers.append(
                    [_parse(path, first, columns, 1 + i, _integer, "a decimal integer or empty") for i in range(INTEGERS)]
                )
                categories.append(
                    [
                        _parse(path, first, columns, 1 + INTEGERS + i, _category, "1 to 8 hex digits or empty")
                        for i in range(CATEGORIES)
                    ]
                )
    except OSError as error:
        raise bad("--criteo", "cannot read the file", got=str(path), allowed=f"a readable file ({error.strerror})") from None
    samples = sum(map(len, labels))
    held_out = round(samples * TEST_SHARE)
    if held_out == 0:
        raise bad(str(path), "too few lines", got=samples, allowed="3 lines or more: a fifth of them is held out")
    raw = np.concatenate(integers, axis=1)  # [13, N]
    keys = np.concatenate(categories, axis=1)  # [26, N]
    index = torch.arange(samples)
    return ClickData(
        name=path.name,
        dense=torch.from_numpy((np.sign(raw) * np.log1p(np.abs(raw))).T.astype(np.float32)).contiguous(),
        dense_names=FIELD_NAMES[1 : 1 + INTEGERS],
        features={f"cat_{i}": Ids(torch.from_numpy(hashed(keys[i], rows, seed + i))) for i in range(CATEGORIES)},
        labels=torch.from_numpy(np.concatenate(labels).astype(np.float32)),
        tables=tuple(TableSpec(f"t_cat_{i}", f"cat_{i}", rows) for i in range(CATEGORIES)),
        train=index[:-held_out],
        test=index[-held_out:],
    )


def hashed(keys: np.ndarray, rows: int, seed: int) -> np.ndarray:
    """Row numbers for categories: 0 for a missing one (-1), else 1 to ``rows - 1``.

    The mixing is the finalizer of SplitMix64 (Steele et al., 2014), so that keys that differ in few bits spread evenly.
    """
    with np.errstate(over="ignore"):
        mixed = keys.astype(np.uint64) + np.uint64(seed + 1) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return np.where(keys < 0, 0, 1 + (mixed % np.uint64(rows - 1)).astype(np.int64))


def _chunks(file: TextIO, max_lines: int | None) -> Iterator[tuple[int, list[str]]]:
    """Lines in portions, each with the number of its first line."""
    first, lines = 1, islice(_without_blank_end(file), max_lines)
    while chunk := list(islice(lines, CHUNK)):
        yield first, chunk
        first += len(chunk)


def _without_blank_end(file: TextIO) -> Iterator[str]:
    blank: list[str] = []
    for line in file:
        if line.strip(" \n"):
            yield from blank
            yield line
            blank.clear()
        else:
            blank.append(line)


def _columns(path: Path, first: int, lines: list[str]) -> list[tuple[str, ...]]:
    split = [line.rstrip("\n").split("\t") for line in lines]
    for number, fields in enumerate(split, first):
        if len(fields) != FIELDS:
            raise bad(
                f"{path}:{number}",
                "wrong number of tab-separated fields",
                got=len(fields),
                allowed=f"{FIELDS} (label, {INTEGERS} integers, {CATEGORIES} hex categories; a missing one is empty)",
            )
    return list(zip(*split, strict=True))


def _parse(
    path: Path, first: int, columns: Sequence[Sequence[str]], field: int, read: Callable[[str], int | None], allowed: str
) -> np.ndarray:
    """Read one column. Each distinct text is read only once, which makes this quick."""
    column = columns[field]
    values = {text: read(text) for text in set(column)}
    if None in values.values():
        at = next(i for i, text in enumerate(column) if values[text] is None)
        raise bad(
            f"{path}:{first + at}: field {field + 1} ({FIELD_NAMES[field]})", "bad value", got=column[at], allowed=allowed
        )
    return np.fromiter((values[text] for text in column), dtype=np.int64, count=len(column))


def _label(text: str) -> int | None:
    return int(text) if text in ("0", "1") else None


def _integer(text: str) -> int | None:
    if not text:
        return 0
    return int(text) if _INTEGER.fullmatch(text) else None


def _category(text: str) -> int | None:
    if not text:
        return -1
    return int(text, 16) if _HEX.fullmatch(text) else None
