"""The parameter ``range`` of uniform codecs: which values their levels cover.

| written | levels cover | travels |
|---|---|---|
| nothing, or ``row`` | each row's minimum to its maximum | in every row |
| ``{percentile: 99}`` | each row's middle 99 %; values beyond saturate | in every row |
| ``{ema: 0.99}`` | a moving average of the sender's minima and maxima of a table | once for a table and rank pair |
| ``{static: [lo, hi]}`` | these numbers | once for a table and rank pair |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from torchrec_qcomm.errors import CodecError, describe

KINDS = ("percentile", "ema", "static")
LIMIT = 2.0**126
"""The largest magnitude that a range for a table can have: its levels do not overflow."""


@dataclass(frozen=True, slots=True)
class Range:
    """A range other than each row's own.

    Attributes:
        kind: ``percentile``, ``ema`` or ``static``.
        numbers: the percentage; the weight of the past; or the two ends.

    >>> str(Range("static", (-1.0, 1.0)))
    'static -1 to 1'
    """

    kind: str
    numbers: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.kind} {' to '.join(map(_shown, self.numbers))}"

    @property
    def of_table(self) -> bool:
        """Whether the rows of a table share it."""
        return self.kind != "percentile"


def parse(where: str, value: object) -> Range | None:
    """What a user wrote for ``range``; ``None``: each row's own.

    Raises:
        CodecError: it is none of the four.
    """
    if value is None or value == "row" or isinstance(value, Range):
        return value if isinstance(value, Range) else None
    allowed = "row, {percentile: 50 to 100}, {ema: 0 to 1} or {static: [lo, hi]}"
    if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in KINDS:
        raise CodecError(describe(where, "not a range", got=value, allowed=allowed))
    ((kind, given),) = value.items()
    numbers = tuple(given) if kind == "static" and isinstance(given, (list, tuple)) else (given,)
    if not all(isinstance(number, (int, float)) and not isinstance(number, bool) for number in numbers):
        raise CodecError(describe(f"{where}.{kind}", "not a number", got=given, allowed=allowed))
    try:
        numbers = tuple(float(number) for number in numbers)
    except OverflowError:
        raise CodecError(describe(f"{where}.{kind}", "out of bounds", got=given, allowed=allowed)) from None
    if kind == "percentile" and not 50 < numbers[0] < 100:
        raise CodecError(describe(f"{where}.{kind}", "out of bounds", got=given, allowed="above 50 and below 100"))
    if kind == "ema" and not 0 <= numbers[0] < 1:
        raise CodecError(describe(f"{where}.{kind}", "out of bounds", got=given, allowed="0 or more, below 1"))
    if kind == "static":
        _check_static(f"{where}.{kind}", given, numbers)
    return Range(kind, numbers)


def _shown(number: float) -> str:
    """Exactly, since ranks compare what is printed, and statistics are saved by it."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def _check_static(where: str, given: object, numbers: tuple[float, ...]) -> None:
    allowed = f"two numbers, lo <= 0 <= hi and lo < hi, of at most {LIMIT:.3g}: a zero must arrive as a zero"
    fits = len(numbers) == 2 and all(isfinite(n) and abs(n) <= LIMIT for n in numbers) and numbers[0] <= 0 <= numbers[1]
    if not fits or numbers[0] == numbers[1]:
        raise CodecError(describe(where, "not the ends of a range", got=given, allowed=allowed))
