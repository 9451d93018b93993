"""Pictures as inline SVG: heat maps and bars. Text stays text, colours are the page's CSS classes, every mark has a title."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from torchrec_qcomm.planner.units import saved, share

SHADES = 8
"""Colours of a heat map for values above 0: the classes ``h1`` to ``h8``. Cells that are 0 have ``h0``."""

_TITLED = 128
"""Up to so many rows, every cell of a heat map has a title. In larger ones, all cells of a colour are one path."""

_BARS = 512
"""How many bars `columns` draws at most. If there are more values, several share a bar."""

Words = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Scale:
    """Which shade a value has.

    Attributes:
        bounds: the upper bound of each shade.
        words: how the bounds lie.
    """

    bounds: tuple[float, ...]
    words: str

    def shade(self, values: np.ndarray) -> np.ndarray:
        """0 for nothing, else 1 to `SHADES`."""
        return np.where(values > 0, 1 + np.searchsorted(self.bounds[:-1], values), 0)


def scale_of(values: np.ndarray) -> Scale:
    """Even steps from 0; from the least value if all would look alike; even ratios if most values would get one shade."""
    positive = values[values > 0]
    if not len(positive):
        return Scale((0.0,) * SHADES, "nothing is sent")
    low, high = float(positive.min()), float(positive.max())
    steps = np.arange(1, SHADES + 1) / SHADES
    if float(np.median(positive)) < high / SHADES:
        bounds, words = low * (high / low) ** steps, "even ratios"
    elif low > high / 2:
        bounds, words = low + (high - low) * steps, "even steps, not from 0"
    else:
        bounds, words = high * steps, "even steps"
    return Scale((*map(float, bounds[:-1]), high), words)


def heat_map(values: np.ndarray, what: str, words: Words, group: int | None = None) -> str:
    """A square matrix: sources downwards, destinations to the right.

    Args:
        values: ``[n, n]``, not negative.
        what: a row or column is: ``rank`` or ``host``.
        words: a value with its unit.
        group: rows between lines, such as the ranks of a host.

    Returns:
        An ``svg`` element with axes and a legend.
    """
    n, left, top = len(values), 58, 34
    cell = _cell(n)
    edge = cell * n
    scale = scale_of(values)
    shades = scale.shade(values)
    marks = _cells(values, shades, what, words) if n <= _TITLED else _paths(values, shades, what, words)
    parts = [f'<g transform="translate({left} {top}) scale({cell:.4f})" class="heat">{marks}</g>']
    parts += _grid(n, group, cell, left, top)
    if n <= 12:
        for row, column in np.ndindex(n, n):
            x, y = left + (column + 0.5) * cell, top + (row + 0.5) * cell
            dark = " on" if shades[row, column] > SHADES // 2 else ""
            parts.append(_text(x, y + 3, _short(words(float(values[row, column]))), f"mid tiny{dark}"))
    step = _tick_step(n, group, cell)
    for tick in range(0, n, step):
        at = (tick + 0.5) * cell
        parts.append(_text(left + at, top - 6, str(tick), "mid small"))
        parts.append(_text(left - 6, top + at + 4, str(tick), "end small"))
    parts.append(_text(left + edge / 2, top - 21, f"destination {what}", "mid"))
    parts.append(_text(0, 0, f"source {what}", "mid", f"translate(13 {top + edge / 2:.1f}) rotate(-90)"))
    parts += _legend(scale, words, left, top + edge + 24)
    return _svg(max(left + edge + 12, 750), top + edge + 66, parts, f"bytes from each {what} to each other {what}")


def lined(n: int, group: int | None) -> bool:
    """Whether `heat_map` draws lines between groups: not where they would hide the cells."""
    return group is not None and 1 < group < n and _cell(n) * group >= 24


def _cell(n: int) -> float:
    return max(1.0, min(54.0, 648 / n))


def _cells(values: np.ndarray, shades: np.ndarray, what: str, words: Words) -> str:
    parts = []
    for row, column in np.ndindex(*values.shape):
        title = f"{what} {row} to {column}: {words(float(values[row, column]))}"
        parts.append(
            f'<rect x="{column}" y="{row}" width="1" height="1" class="h{shades[row, column]}"><title>{title}</title></rect>'
        )
    return "".join(parts)


def _paths(values: np.ndarray, shades: np.ndarray, what: str, words: Words) -> str:
    """A path for each shade, made of the runs of that shade in each row. Above them lies a title for each row."""
    found: dict[int, list[str]] = {shade: [] for shade in range(SHADES + 1)}
    n = len(values)
    for row in range(n):
        starts = np.flatnonzero(np.diff(shades[row], prepend=-1))
        for start, end in zip(starts, [*starts[1:], n], strict=True):
            found[int(shades[row, start])].append(f"M{start} {row}h{end - start}v1h-{end - start}z")
    parts = [f'<path class="h{shade}" d="{"".join(runs)}"/>' for shade, runs in found.items() if runs]
    for row in range(n):
        most = int(values[row].argmax())
        title = (
            f"{what} {row} sends {words(float(values[row].sum()))}, most to {what} {most}: {words(float(values[row, most]))}"
        )
        parts.append(f'<rect y="{row}" width="{n}" height="1" class="clear"><title>{title}</title></rect>')
    return "".join(parts)


def _grid(n: int, group: int | None, cell: float, left: float, top: float) -> list[str]:
    lines = []
    if group and lined(n, group):
        for at in range(group, n, group):
            x, y, edge = left + at * cell, top + at * cell, n * cell
            lines.append(f'<path class="line" d="M{x:.1f} {top}v{edge:.1f}M{left} {y:.1f}h{edge:.1f}"/>')
    lines.append(f'<rect x="{left}" y="{top}" width="{n * cell:.1f}" height="{n * cell:.1f}" class="frame"/>')
    return lines


def _tick_step(n: int, group: int | None, cell: float) -> int:
    """The step between labels: at least 26 pixels, and whole hosts if there are any."""
    step = group if group and group < n else 1
    while step * cell < 26 and step < n:
        step *= 2
    return step


def _legend(scale: Scale, words: Words, x: float, y: float) -> list[str]:
    parts = [f'<rect x="{x}" y="{y}" width="22" height="12" class="h0 edge"/>', _text(x + 11, y + 26, "none", "mid tiny")]
    for index, bound in enumerate(scale.bounds):
        at = x + 34 + index * 62
        parts.append(f'<rect x="{at}" y="{y}" width="62" height="12" class="h{index + 1}"/>')
        parts.append(_text(at + 62, y + 26, words(bound), "end tiny"))
    parts.append(_text(x + 34 + 62 * SHADES + 8, y + 11, scale.words, "small"))
    return parts


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of `bars`: its name, its parts from left to right, and the words ``after`` them.

    A part is ``(value, CSS class, title)``. The title shows when the pointer is on the part.
    """

    name: str
    parts: tuple[tuple[float, str, str], ...]
    after: str = ""
    gap: bool = False


def bars(rows: Sequence[Bar], words: Words, axis: str, width: int = 860, left: int = 210) -> str:
    """Horizontal bars on one axis that begins at 0.

    Args:
        rows: from the top; each part is ``(value, class, title)``, and ``gap`` leaves room above.
        words: a value with its unit, for the axis.
        axis: what the axis shows.
        width: of the picture in pixels.
        left: of them, for names.
    """
    right, top, height = 150, 6, 17
    largest = max((sum(value for value, _, _ in row.parts) for row in rows), default=0.0) or 1.0
    room = width - left - right
    y, parts = float(top), []
    for row in rows:
        y += 8 if row.gap else 0
        x = float(left)
        if row.name:
            parts.append(_text(left - 8, y + 12, row.name, "end"))
        for value, css, title in row.parts:
            length = room * value / largest
            parts.append(_bar(x, y + 1, length, height - 3, css, title))
            x += length
        parts.append(_text(x + 6, y + 12, row.after, "small"))
        y += height
    lines = []
    for tick in _ticks(largest):
        x = left + room * tick / largest
        lines.append(f'<path class="rule" d="M{x:.1f} {top}V{y + 4:.1f}"/>')
        lines.append(_text(x, y + 18, words(tick), "mid small"))
    lines.append(_text(left + room / 2, y + 36, axis, "mid"))
    return _svg(width, y + 44, [*lines, *parts], axis)


def columns(values: np.ndarray, what: str, axis: str, words: Words, marked: Sequence[int] = (), width: int = 860) -> str:
    """A bar for each rank, and a line at the mean.

    Args:
        values: one for each rank; above `_BARS` of them, a bar is the largest of some neighbours.
        what: a bar is of: ``rank``.
        axis: what the upright axis shows, with its unit.
        words: a value with its unit.
        marked: ranks in another colour.
        width: of the picture in pixels.
    """
    left, top, height, right = 78, 10, 120, 12
    per_bar = -(-len(values) // _BARS)
    starts = range(0, len(values), per_bar)
    largest, mean, room = float(values.max()) or 1.0, float(values.mean()), width - left - right
    step = room / len(starts)
    parts = []
    for tick in _ticks(largest, 3):
        y = top + height * (1 - tick / largest)
        parts.append(f'<path class="rule" d="M{left} {y:.1f}H{width - right}"/>')
        parts.append(_text(left - 6, y + 4, words(tick), "end small"))
    for index, start in enumerate(starts):
        some = values[start : start + per_bar]
        rank, value = start + int(some.argmax()), float(some.max())
        css = "marked" if set(marked) & set(range(start, start + per_bar)) else "bar"
        tall = height * value / largest
        x, thick = left + index * step, max(step - (1 if step > 3 else 0), 0.5)
        parts.append(_bar(x, top + height - tall, thick, tall, css, f"{what} {rank}: {words(value)}"))
    y = top + height * (1 - mean / largest)
    parts.append(f'<path class="mean" d="M{left} {y:.1f}H{width - right}"><title>mean: {escape(words(mean))}</title></path>')
    every = int(_nice(max(1, len(values) // 12)))
    for rank in range(0, len(values), every):
        parts.append(_text(left + (rank / per_bar + 0.5) * step, top + height + 15, str(rank), "mid small"))
    most = f" (each bar: the largest of {per_bar})" if per_bar > 1 else ""
    parts.append(_text(left + room / 2, top + height + 32, f"{what}{most}", "mid"))
    parts.append(_text(0, 0, axis, "mid small", f"translate(11 {top + height / 2}) rotate(-90)"))
    return _svg(width, top + height + 40, parts, axis)


def pair(name: str, before: float, after: float, words: Words) -> list[Bar]:
    """Two bars, without codecs and with the policy."""
    gain = share(saved(before, after))
    return [
        Bar(name, ((before, "before", f"{name} without codecs: {words(before)}"),), words(before), gap=True),
        Bar("", ((after, "after", f"{name} with the policy: {words(after)}"),), f"{words(after)} ({gain} saved)"),
    ]


def _bar(x: float, y: float, width: float, height: float, css: str, title: str) -> str:
    size = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
    return f'<rect {size} class="{css}"><title>{escape(title)}</title></rect>'


def _ticks(largest: float, count: int = 5) -> list[float]:
    step = _nice(largest / count)
    return [step * index for index in range(int(largest / step * 1.0001) + 1)]


def _nice(value: float) -> float:
    """1, 2 or 5 times a power of ten, not below ``value``."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * 0.999)


def _short(words: str) -> str:
    return words.replace(" ", "")


def _text(x: float, y: float, text: str, css: str, transform: str = "") -> str:
    move = f' transform="{transform}"' if transform else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}"{move}>{escape(text)}</text>'


def _svg(width: float, height: float, parts: Sequence[str], label: str) -> str:
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    return f'<svg {size} role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
