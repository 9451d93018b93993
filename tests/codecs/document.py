"""Writes docs/codecs.md and its plot: what every codec costs and how much error it makes, on Gaussian rows.

    python tests/codecs/document.py --write docs/codecs.md

Speeds are left out: they are the machine's, and `torchrec-qcomm codecs` prints them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torchrec_qcomm.tune.survey import Figures, sample_of, survey

DIMS = (16, 64, 128)
PLOTTED = 128
ROWS = 4096

INTRO = """# Codecs beside each other

Written by `make codecs`; do not edit. {rows:,} rows of independent normal values, seed 0. `torchrec-qcomm codecs` prints the
same for other samples (`--dist laplace`, `--dist zipf-rows`, a file of your own rows), and with the speeds of your machine.

| column | meaning |
|---|---|
| bytes | of a row on the wire, scales included |
| error | relative, `norm(decoded - x) / norm(x)`: root mean square over the rows; above 1 it is worse than to send nothing |
| worst | the largest error of a value, over the largest magnitude in its row |
| bias | the mean of `(decoded - x) * sign(x)` over the mean of `abs(x)`: below zero, values shrink |
| cosine | of the angle between a row and what it decodes to |

The bias of a stochastic codec is that of the mean of 64 encodings.

![bytes a value against relative error](codecs.svg)
"""


def table(figures: list[Figures]) -> list[str]:
    """One sample's figures as a Markdown table."""
    lines = ["| codec | bytes | ratio | error | worst | bias | cosine |", "|---|---|---|---|---|---|---|"]
    for f in figures:
        error = f"**{f.error:.4f}**, worse than nothing" if f.useless else f"{f.error:.4f}"
        lines.append(
            f"| `{f.name}` | {f.row_bytes} | {f.ratio:.2f} | {error} | {f.worst:.4f} | {f.bias:+.4f} | {f.cosine:.4f} |"
        )
    return lines


def plot(figures: list[Figures], path: Path) -> None:
    """Bytes a value against relative error, both on logarithmic axes."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "codecs", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot

    shown = sorted((f for f in figures if f.error > 0), key=lambda f: f.error)
    chart, axes = pyplot.subplots(figsize=(9, 6))
    axes.scatter([f.row_bytes / PLOTTED for f in shown], [f.error for f in shown], s=12)
    # Codecs of about one size have their names beside each other: each one above the last, and joined to its point.
    height: dict[float, float] = {}
    for f in shown:
        bits = round(8 * f.row_bytes / PLOTTED / 0.9)
        place = (1.3 if bits <= 1 else 2 if bits <= 2 else 4 if bits <= 5 else 8 if bits <= 10 else 16) / 8 * 1.12
        height[place] = at = max(f.error, 1.28 * height.get(place, 0.0))
        axes.annotate(
            f.name,
            (f.row_bytes / PLOTTED, f.error),
            xytext=(place * 1.06, at),
            va="center",
            arrowprops={"arrowstyle": "-", "linewidth": 0.3, "color": "gray"},
        )
    axes.axhline(1, linewidth=0.8, linestyle="--", color="gray")
    axes.annotate("sending nothing", (2, 1), xytext=(0, 3), textcoords="offset points", ha="right", color="gray")
    axes.set(xscale="log", yscale="log", xlabel=f"bytes a value, D = {PLOTTED}", ylabel="relative error, normal rows")
    ticks = [0.125, 0.25, 0.5, 1, 2]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlim(0.12, 4)
    chart.tight_layout()
    chart.savefig(path, metadata={"Date": None, "Creator": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, required=True, metavar="FILE")
    path: Path = parser.parse_args().write
    parts = [INTRO.format(rows=ROWS)]
    for dim in DIMS:
        figures = survey(sample_of("normal", ROWS, dim), seconds=0)
        parts += [f"## D = {dim}\n", *table(figures), ""]
        if dim == PLOTTED:
            plot(figures, path.with_suffix(".svg"))
    path.write_text("\n".join(parts).rstrip() + "\n")


if __name__ == "__main__":
    main()
