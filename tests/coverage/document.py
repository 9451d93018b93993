"""The page docs/coverage.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from textwrap import fill

from tests.coverage.cases import CASES, CODECS, SHARDINGS, WORLD, Cell
from tests.coverage.judge import ONE_PRECISION, Result, Results
from tests.sharding.scenarios.tables import LOCAL

COLLECTIONS = {"ebc": "EmbeddingBagCollection", "ec": "EmbeddingCollection"}
PACKAGES = ("torch", "torchrec", "fbgemm-gpu-cpu", "torchrec-qcomm")


class Messages:
    """Numbered texts: a cell has the number, the end of the page the text."""

    def __init__(self, letter: str) -> None:
        self._letter = letter
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> str:
        """The label of a text, the same for equal ones."""
        return f"{self._letter}{self._numbers.setdefault(text, len(self._numbers) + 1)}"

    def __str__(self) -> str:
        """A list item for each."""
        return "\n".join(f"- {self._letter}{number}: `{text.replace('`', chr(39))}`" for text, number in self._numbers.items())


def document(ours: Results, native: Results, seconds: float) -> str:
    """The page.

    Args:
        ours, native: every cell of this package, and of TorchRec's own.
        seconds: that the measurement took.
    """
    reasons, errors = Messages("R"), Messages("E")
    tables = [
        f"### {COLLECTIONS[kind]}, {sharding}\n\n{_table(kind, sharding, ours, native, reasons, errors)}"
        for kind, shardings in SHARDINGS.items()
        for sharding in shardings
    ]
    versions = ", ".join(f"{name} {number}" for name, number in _versions().items())
    return _PAGE.format(
        written=fill(
            f"Written by `make coverage`; do not edit. Measured with {versions}; {platform.machine()}, {os.cpu_count()} CPU "
            f"cores, {seconds / 60:.0f} minutes in all.",
            124,
        ),
        world=WORLD,
        local=LOCAL,
        hosts=WORLD // LOCAL,
        one_precision=ONE_PRECISION,
        summary=_summary(ours, native),
        tables="\n\n".join(tables),
        reasons=reasons,
        errors=errors,
    )


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "of unknown version"
    return found


def _table(kind: str, sharding: str, ours: Results, native: Results, reasons: Messages, errors: Messages) -> str:
    lines: list[Sequence[str]] = [("codec", *CASES), ("---",) * (len(CASES) + 1)]
    for codec in CODECS:
        cells = [Cell(kind, sharding, codec, case) for case in CASES]
        shown = [f"{_ours(cell, ours[cell], reasons)}<br>{_native(native[cell], reasons, errors)}" for cell in cells]
        lines.append((codec, *shown))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _ours(cell: Cell, result: Result, reasons: Messages) -> str:
    if result.reason is not None:
        return reasons.number(result.reason)
    mark = "<sup>a</sup>" if cell.kind == "ec" and cell.case == "VBE" else ""
    return f"{_number(result.forward)} / {_number(result.backward)}{mark}"


def _native(result: Result, reasons: Messages, errors: Messages) -> str:
    if result.phase == "cannot":
        return "cannot"
    if result.reason is not None and result.phase is None:
        return reasons.number(result.reason)
    if result.reason is not None:
        return f"{errors.number(result.reason)} {result.phase}"
    numbers = f"{_number(result.forward)} / {_number(result.backward)}"
    return f"{result.remark or 'OK'} {numbers}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    mantissa, exponent = f"{value:.1e}".split("e")
    return "0" if value == 0 else mantissa if int(exponent) == 0 else f"{mantissa}e{int(exponent)}"


def _summary(ours: Results, native: Results) -> str:
    measured = [result for result in ours.values() if result.reason is None]
    over, cell = max((result.over or 0.0, str(cell)) for cell, result in ours.items() if result.reason is None)
    offered = [r for r in native.values() if r.phase != "cannot" and (r.reason is None or r.phase is not None)]
    sound = sum(r.reason is None and r.remark is None for r in offered)
    failing = sum(r.reason is not None for r in offered)
    text = (
        f"{len(measured)} of {len(ours)} cells are measured and within their bounds, {len(ours) - len(measured)} have a "
        f"reason. The error that comes nearest to its bound takes {over:.4f} of it ({cell}). Of the {len(offered)} cells that "
        f"TorchRec has a precision for, {sound} are OK, {failing} fail with an error, and {len(offered) - sound - failing} do "
        "something else than they were told."
    )
    return fill(text, 124)


_PAGE = """# What is exchanged quantized, and how exactly

{written}

Every cell is one training step of four tables on {world} gloo ranks, on {hosts} emulated hosts of {local} ranks each, held
against an unsharded FP32 computation over the global batch: `forward error / gradient error`, relative (L2, over all ranks).
The gradient is the one that the fused SGD applied. The upper line of a cell is this package, the lower one TorchRec's own
sharder with its own quantized communication of the same precision.

The command fails if a cell of this package is empty without a reason, if a codec changes nothing, or if the error of any single
element, output or gradient, is above its bound: the sum of the [codecs' bounds](reference.md#codecs) over all that is
added up on its way, and over both hops of `table_row_wise` and `grid_shard`, plus FP32 roundings.

{summary}

## How to read it

Rows are codecs, in both directions. `fp8` is E4M3 forward and E5M2 backward. `mixed` gives each table others: int8, fp8, int4
and fp16 forward, int8, fp8, bf16 and int4 backward. `per-link` is bf16 inside a host, and between hosts int4 forward and int8
backward.

| case | |
|---|---|
| even | dims 64 and 32 (64 for sequences), 8 samples on every rank, one feature a table, sums |
| odd | dims 20, 36, 52 and 28 (36 for sequences), in column shards down to 4; 7 samples on every rank |
| uneven | 8, 8, 8 and 5 samples |
| empty rank | 8, 0, 8 and 8 samples |
| VBE | variable batch per feature: 1 to 7 distinct rows a feature, batches of 8, 9, 5 and 4 samples |
| weighted | ids with weights |
| mean | mean pooling |
| multi-feature | tables with 2, 1, 3 and 1 features |

Dims are multiples of 4, since FBGEMM's lookups take no others; the tests of layouts and codecs have dims such as 1, 5, 7
and 33.

| in a cell | |
|---|---|
| `R1` | why there is nothing to measure: [reasons](#reasons) |
| `E1 forward` | TorchRec fails there, or in `backward` or `shard`: [error messages](#error-messages) |
| OK | TorchRec's step runs, its collectives were given the dtype of its precision, and the errors are these |
| silently fp16 | they were given this dtype instead; `in` which of them, if not in all |
| WRONG, gradient LOST | TorchRec's step runs, and the relative error of the output, or of the gradient alone, is above 0.5 |
| cannot | TorchRec has {one_precision} |
| <sup>a</sup> | the gradient is given to what the exchange brings: see below |

TorchRec's precision beside `int4` is MX4, its nearest, beside `none` FP32. Its FP8 is the one without `fp8_quantize_dim`. Sizes
in error messages are written `N`.

A variable batch of sequences is written out by TorchRec after the exchange, and on CPU that loses all gradients, with this
package as without. So gradients are measured at what the exchange brings, those of TorchRec's own at the module's output.

## Tables

{tables}

## Reasons

{reasons}

## Error messages

{errors}
"""
