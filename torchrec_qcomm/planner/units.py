"""Numbers with their units, as advice and reports print them. No number has an exponent."""

from __future__ import annotations

import math
from collections.abc import Iterable

_PREFIXES = ("", "k", "M", "G", "T", "P")


def scaled(value: float, unit: str) -> str:
    """Three or four digits and a decimal prefix, as in GB/s of 1e9 bytes.

    >>> scaled(1_234_567, "B"), scaled(999, "B"), scaled(0, "B"), scaled(-1500, "B"), scaled(0.5, "B")
    ('1.23 MB', '999 B', '0 B', '-1.50 kB', '0.5 B')
    """
    size, prefix = abs(value), 0
    # 999.6 k would be printed as 1000 k.
    while size >= (999.5 if prefix else 1000) and prefix < len(_PREFIXES) - 1:
        size /= 1000
        prefix += 1
    places = 2 if size < 9.995 else 1 if size < 99.95 else 0
    digits = f"{size:.{places}f}" if prefix else f"{size:.4g}"
    return f"{'-' if value < 0 else ''}{digits} {_PREFIXES[prefix]}{unit}"


def size(value: float) -> str:
    """Bytes."""
    return scaled(value, "B")


def amount(value: float, unit: str) -> str:
    """A value in the unit of a `Load`: bytes with a prefix, other things in full up to a million.

    >>> amount(2048, "B a step"), amount(1536, "ids a step"), amount(40_000_000, "rows")
    ('2.05 kB a step', '1,536 ids a step', '40.0 M rows')
    """
    first, _, rest = unit.partition(" ")
    if first == "B":
        return f"{size(value)}{' ' if rest else ''}{rest}"
    if abs(value) < 1e6:
        return f"{value:,.{0 if float(value).is_integer() else 1}f} {unit}"
    number, prefix = scaled(value, "").rstrip().split(" ")
    return f"{number} {prefix} {unit}"


def digits(value: float) -> str:
    """Three digits, or all of a whole number's.

    >>> digits(12.345), digits(0.01234), digits(0), digits(1234.5), digits(2.5), digits(-7.63e-05)
    ('12.3', '0.0123', '0', '1,234', '2.5', '-0.0000763')
    """
    size = abs(value)
    if size == 0 or size >= 99.95:
        return f"{value:,.0f}"
    text = f"{value:.{2 - math.floor(math.log10(size))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def time(ms: float) -> str:
    """Three digits of milliseconds, or of microseconds below a thousandth of a millisecond.

    >>> time(12.345), time(0.01234), time(0), time(1234.5), time(0.0000763)
    ('12.3 ms', '0.0123 ms', '0 ms', '1,234 ms', '0.0763 µs')
    """
    return f"{digits(ms)} ms" if ms == 0 or abs(ms) >= 0.001 else f"{digits(ms * 1000)} µs"


def rate(gb_per_s: float) -> str:
    """GB/s of 1e9 bytes.

    >>> rate(13.42177), rate(600.0), rate(12345.6)
    ('13.4 GB/s', '600 GB/s', '12,346 GB/s')
    """
    return f"{digits(gb_per_s)} GB/s"


def share(part: float | None) -> str:
    """A share of 1 in per cent; ``None``: not known.

    >>> share(0.5333), share(None), share(1.0), share(-0.25)
    ('53.3 %', '-', '100.0 %', '-25.0 %')
    """
    return "-" if part is None else f"{100 * part:.1f} %"


def saved(before: float, after: float) -> float | None:
    """The share of ``before`` that ``after`` saves. It is below 0 if ``after`` is more, and ``None`` if ``before`` is 0."""
    return 1 - after / before if before else None


def ranges(numbers: Iterable[int]) -> str:
    """Whole numbers, with neighbours as ranges.

    >>> ranges([3, 0, 1, 2, 8]), ranges([])
    ('0-3, 8', '')
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def shortened(name: str, width: int) -> str:
    """A name of at most ``width`` characters; of a longer one, the middle is left out.

    >>> shortened("model.sparse.table_1705", 12)
    'mode..e_1705'
    """
    if len(name) <= width:
        return name
    tail = (width - 2) * 2 // 3
    return f"{name[: width - 2 - tail]}..{name[-tail:]}"
