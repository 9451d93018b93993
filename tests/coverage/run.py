"""Measure every cell, judge ours, and write the page.

    python tests/coverage/run.py --write docs/coverage.md

Exits with 1, and names the cells, if an error of ours is above its bound, if a cell is empty without a reason, or if a codec
did nothing.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.coverage.cases import CASES, NATIVE, SHARDINGS, WORLD, Cell, rows_of_cells  # noqa: E402
from tests.coverage.cells import Answer, measure  # noqa: E402
from tests.coverage.document import document  # noqa: E402
from tests.coverage.judge import Result, faults, result, unmeasured  # noqa: E402
from tests.ranks import RankPool  # noqa: E402
from tests.sharding.scenarios.tables import LOCAL  # noqa: E402

PATIENCE = 15.0
"""Seconds that a collective waits for ranks which failed before it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; the exit code."""
    options = _options(arguments)
    pool, ours, native = RankPool(), {}, {}
    began = time.perf_counter()
    try:
        for row in rows_of_cells():
            if not set(options.only) <= set(row[:2]):
                continue
            start = time.perf_counter()
            ours |= measured(pool, *row, list(CASES), native=False)
            native |= measured(pool, *row, list(CASES), native=True)
            print(f"{' '.join(row):40} {time.perf_counter() - start:5.1f} s", flush=True)
    finally:
        pool.close()
    wrong = faults(ours, list(ours) if options.only else None)
    if options.write:
        Path(options.write).write_text(document(ours, native, time.perf_counter() - began))
    print("\n".join(["WRONG:", *wrong]) if wrong else f"As it should be: {len(ours)} cells.")
    return 1 if wrong else 0


def measured(pool: RankPool, kind: str, sharding: str, codec: str, cases: Sequence[str], *, native: bool) -> dict[Cell, Result]:
    """The results of these cases; one of the ranks' processes that dies takes only its own cell with it."""
    cells = {case: Cell(kind, sharding, codec, case) for case in cases}
    fixed = {cell: known for cell in cells.values() if (known := unmeasured(cell, native=native))}
    names = [case for case, cell in cells.items() if cell not in fixed]
    try:
        answers = _run(pool, kind, sharding, codec, names, native)
    except AssertionError:
        answers = {}
        for name in names:
            try:
                answers |= _run(pool, kind, sharding, codec, [name], native)
            except AssertionError as error:
                died = re.search(r"died with exit code -?\d+", str(error))
                if died is None and " raised\n" in str(error):
                    raise  # a fault of the measurement
                print(error, file=sys.stderr)
                said = f"a rank's process {died.group() if died else 'does not end'}"
                answers[name] = [Answer(failed=("step", said))] * WORLD
    return fixed | {cells[name]: result(of_ranks, NATIVE[codec] if native else None) for name, of_ranks in answers.items()}


def _run(pool: RankPool, kind: str, sharding: str, codec: str, names: list[str], native: bool) -> dict[str, list[Answer]]:
    if not names:
        return {}
    with tempfile.TemporaryDirectory(prefix="coverage-") as folder:
        arguments = (kind, sharding, codec, names, native, folder, PATIENCE)
        of_ranks = pool.run(WORLD, measure, *arguments, seconds=240, env={"LOCAL_WORLD_SIZE": str(LOCAL)})
    return {name: [answers[name] for answers in of_ranks] for name in names}


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", metavar="FILE", help="write the page")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="of collections and shardings: ebc row_wise")
    options = parser.parse_args(arguments)
    known = {*SHARDINGS, *(sharding for shardings in SHARDINGS.values() for sharding in shardings)}
    if unknown := set(options.only) - known:
        parser.error(f"--only: {', '.join(sorted(unknown))}: none of {', '.join(sorted(known))}")
    if options.only and options.write:
        parser.error("--write needs all cells")
    return options


if __name__ == "__main__":
    sys.exit(main())
