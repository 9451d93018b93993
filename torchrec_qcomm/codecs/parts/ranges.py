"""The parameter ``range`` of uniform codecs: which values their levels cover.

| written | levels cover | the range travels |
|---|---|---|
| nothing, or ``row`` | each row's minimum to its maximum | in every row |
| ``{percentile: 99}`` | each row's middle 99 %; values beyond saturate | in every row |
| ``{ema: 0.99}`` | a moving average of the sender's minima and maxima of a table | in a range header |
| ``{static: [lo, hi]}`` | these numbers | in a range header |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from torchrec_qcomm.errors import CodecError, describe

KINDS = ("percentile", "ema", "static")
LIMIT = 2.0**126
"""The largest magnitude that a range of a table can have, so that its levels do not overflow."""


@dataclass(frozen=True, slots=True)
class Range:
    """A range that is not simply each row's minimum to its maximum.

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
        """Whether all rows of a table share it."""
        return self.kind != "percentile"


def parse(where: str, value: object) -> Range | None:
    """The range that a user wrote; ``None`` means each row's own.

    Raises:
        CodecError: it is none of the four forms.
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
    """The exact number as text: ranks compare this text, and statistics are saved under it."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def _check_static(where: str, given: object, numbers: tuple[float, ...]) -> None:
    allowed = f"two numbers, lo <= 0 <= hi and lo < hi, of at most {LIMIT:.3g}: a zero must arrive as a zero"
    fits = len(numbers) == 2 and all(isfinite(n) and abs(n) <= LIMIT for n in numbers) and numbers[0] <= 0 <= numbers[1]
    if not fits or numbers[0] == numbers[1]:
        raise CodecError(describe(where, "not the ends of a range", got=given, allowed=allowed))
