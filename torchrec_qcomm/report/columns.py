"""Tables as text."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def aligned(lines: Sequence[Sequence[str]], left: Collection[str] | None, indent: str = "") -> str:
    """Lines of cells, in columns.

    Args:
        lines: all of one length; the first is the header if ``left`` is given.
        left: the header cells of the columns that are aligned left, the others being numbers; ``None``: all are.
        indent: put before each line.

    >>> print(aligned([["table", "rows"], ["t", "1,000"]], left={"table"}))
    table   rows
    t      1,000
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    to_left = [left is None or name in left for name in lines[0]]
    return "\n".join(
        (indent + "  ".join(_pad(cell, width, side) for cell, width, side in zip(line, widths, to_left, strict=True))).rstrip()
        for line in lines
    )


def _pad(cell: str, width: int, to_left: bool) -> str:
    return cell.ljust(width) if to_left else cell.rjust(width)
