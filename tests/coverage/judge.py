"""What the ranks' answers say about a cell, and whether that is as it must be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt

from tests.coverage.cases import CASES, CODECS, DOES_NOT_EXIST, MAY_BE_REFUSED, NATIVE, SHARDINGS, Cell
from tests.coverage.cells import COLLECTIVES, Answer

ASKED = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "uint8", "int8": "uint8", "mx4": "uint8"}
"""What a collective is given where TorchRec does what its precision says."""

SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
ONE_PRECISION = "one precision for all tables and links of a module"
NOTHING_LIKE_IT = 0.5
"""A relative error that is no codec's."""


@dataclass(frozen=True)
class Result:
    """A cell of the table.

    Attributes:
        forward, backward: relative L2 errors over all ranks; ``None`` where the step did not come so far.
        over: the largest error of an element as a share of its bound; ours alone.
        reason: why there are no errors, or not both.
        phase: in which the step failed.
        refused: the reason is a `ShardingError` of all ranks.
        remark: what TorchRec did else than it was told.
    """

    forward: float | None = None
    backward: float | None = None
    over: float | None = None
    reason: str | None = None
    phase: str | None = None
    refused: bool = False
    remark: str | None = None


Results = Mapping[Cell, Result]


def result(answers: Sequence[Answer], precision: str | None = None) -> Result:
    """The cell that the ranks' ``answers`` make.

    Args:
        answers: one of each rank.
        precision: TorchRec's own, if it is its cell.
    """
    first = answers[0]
    forward, backward = ([getattr(a, what) for a in answers] for what in ("forward", "backward"))
    errors = [None if None in sides else _relative(sides) for sides in (forward, backward)]
    if first.failed is not None:
        phase, message = first.failed
        # A failed forward is no result, even if some ranks have one.
        done = errors[0] if phase == "backward" else None
        return Result(done, reason=shortened(message), phase=phase, refused=all(a.refused for a in answers))
    over = [share for a in answers for share in a.over or ()]
    return Result(*errors, max(over, default=None), remark=precision and _remark(answers, precision, errors))


def _relative(sides: Sequence[tuple[float, float]]) -> float:
    return sqrt(sum(error for error, _ in sides) / sum(square for _, square in sides))


def _remark(answers: Sequence[Answer], precision: str, errors: Sequence[float | None]) -> str | None:
    said = [_silently(answers, precision)]
    if errors[0] is None or errors[0] > NOTHING_LIKE_IT:
        said.append("WRONG")
    elif errors[1] is None or errors[1] > NOTHING_LIKE_IT:
        said.append("gradient LOST")
    return ", ".join(filter(None, said)) or None


def _silently(answers: Sequence[Answer], precision: str) -> str | None:
    """Other dtypes than that of the precision which collectives were given, and which collectives, if not all."""
    seen: dict[tuple[str, str], set[str]] = {}
    for answer in answers:
        for place, dtypes in answer.seen.items():
            seen.setdefault(place, set()).update(dtypes)
    found = {place: others for place, dtypes in seen.items() if (others := dtypes - {ASKED[precision]})}
    if not found:
        return None
    given = " and ".join(sorted({SHORT.get(dtype, dtype) for others in found.values() for dtype in others}))
    where = " and ".join(sorted({COLLECTIVES[name] for _, name in found}))
    return f"silently {given}" if len(found) == len(seen) else f"silently {given} in {where}"


def shortened(message: str) -> str:
    """A message without what differs between cells: the type of the exception and sizes; its first line."""
    text = message.strip().splitlines()[0]
    text = re.sub(r"^(RuntimeError|AssertionError|ValueError|IndexError|ShardingError): ", "", text)
    text = re.sub(r"\[[^\]]*\.cc:\d+\] ", "", text)
    text = re.sub(r"(input of size|input_len|index|waiting)( +)\d+", r"\1 N", text)
    return re.sub(r"\(expected \(.*\), got \(.*\)\)$", "(expected N, got M)", text)


def wanted() -> Iterator[Cell]:
    """Every cell that the table must have."""
    for kind, shardings in SHARDINGS.items():
        for sharding in shardings:
            for codec in CODECS:
                for case in CASES:
                    yield Cell(kind, sharding, codec, case)


def unmeasured(cell: Cell, *, native: bool) -> Result | None:
    """What stands in a cell that cannot be measured; ``None`` for one that can."""
    if (cell.kind, cell.case) in DOES_NOT_EXIST:
        return Result(reason=DOES_NOT_EXIST[cell.kind, cell.case])
    if native and cell.codec not in NATIVE:
        return Result(reason=ONE_PRECISION, phase="cannot")
    return None


def faults(ours: Results, cells: Sequence[Cell] | None = None) -> list[str]:
    """What is wrong with the cells of this package, each named; empty if all is as it must be.

    Args:
        ours: the results.
        cells: which there must be; by default all.
    """
    return [f"{cell}: {fault}" for cell in cells or list(wanted()) for fault in _faults(cell, ours)]


def _faults(cell: Cell, ours: Results) -> Iterator[str]:
    found = ours.get(cell)
    if found is None:
        yield "empty, and no reason"
    elif (cell.kind, cell.case) in DOES_NOT_EXIST:
        if found.reason != DOES_NOT_EXIST[cell.kind, cell.case]:
            yield "TorchRec's module has no such case, and that is not what stands there"
    elif found.reason is not None:
        if not (found.refused and cell.kind == "ebc" and (cell.sharding, cell.case) in MAY_BE_REFUSED):
            yield f"failed in {found.phase}: {found.reason}"
    elif found.forward is None or found.backward is None or found.over is None:
        yield "empty, and no reason"
    elif not all(isfinite(number) for number in (found.forward, found.backward, found.over)):
        yield f"not finite: {found.forward} / {found.backward}"
    elif found.over > 1:
        yield f"an error is {found.over:.4g} times its bound"
    else:
        yield from _idle(cell, found, ours)


def _idle(cell: Cell, found: Result, ours: Results) -> Iterator[str]:
    """A codec that changes nothing is not on the wire."""
    exact = ours.get(Cell(cell.kind, cell.sharding, "none", cell.case))
    if cell.codec == "none" or exact is None:
        return
    for what in ("forward", "backward"):
        if getattr(found, what) == getattr(exact, what):
            yield f"{what}: exactly the error of `none`, so the codec did nothing"
