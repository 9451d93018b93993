#!/usr/bin/env python3
"""Time and memory of a forecast and its report, from small jobs to very large ones: no GPU, no ranks, no data.

    python examples/bench_planner.py                          # 2,000 tables on 64 to 4,096 ranks
    python examples/bench_planner.py --ranks 96 1024 --tables 500

Each size runs in a process of its own, since the peak of memory is measured for a process. "before" is what the process had
after all imports. "analysis" makes forecasts of its own: of the same job, and of the changes that advice tries. The plans are
made up, so the time in which TorchRec makes plans is not part of it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from bench_lib.plans import made_up_job
from dlrm_lib.arguments import count

from torchrec_qcomm.planner.analysis import analyse
from torchrec_qcomm.planner.forecast.predict import predict
from torchrec_qcomm.report.json import report_json
from torchrec_qcomm.report.text.page import report_text

Made = Mapping[str, Any]
SPEEDS = dict.fromkeys(("fp8_e4m3", "fp8_e5m2", "int4", "bf16"), (100.0, 100.0))
"""For the codecs of the made-up policy and those that advice tries. Any speeds do: with them every figure is worked out."""

STEPS: tuple[tuple[str, Callable[[Made], Any]], ...] = (
    ("forecast", lambda made: predict(made["job"])),
    ("analysis", lambda made: analyse(made["job"], speeds=SPEEDS)),
    ("text", lambda made: report_text(made["analysis"])),
    ("JSON", lambda made: report_json(made["analysis"])),
)
"""What is timed, in order. Each step gets the job, and the results of the steps before it by their names."""


def peak_mb() -> float:
    """The most memory that this process has had, in MB (1e6 bytes)."""
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
    return kib * (1 if sys.platform == "darwin" else 1024) / 1e6


def measure(ranks: int, tables: int) -> dict[str, Any]:
    """Run all steps once."""
    made: dict[str, Any] = {"job": made_up_job(ranks, tables)}
    before, seconds = peak_mb(), {}
    for name, step in STEPS:
        start = perf_counter()
        made[name] = step(made)
        seconds[name] = perf_counter() - start
    shards = sum(len(planned.ranks) for planned in made["job"].tables)
    found = {"ranks": ranks, "tables": tables, "shards": shards, "seconds": seconds, "before_mb": before, "peak_mb": peak_mb()}
    return {**found, "json_mb": len(made["JSON"].encode()) / 1e6}


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=count, nargs="+", default=[64, 128, 256, 512, 1024, 2048, 4096], metavar="N")
    parser.add_argument("--tables", type=count, default=2000, metavar="N")
    parser.add_argument("--one", action="store_true", help="measure the first size in this process, and print JSON")
    options = parser.parse_args(arguments)
    if odd := [ranks for ranks in options.ranks if ranks % 8]:
        parser.error(f"--ranks {odd[0]}: hosts have 8 ranks")
    return options


def main() -> None:
    """Print a line for each size."""
    options = parse_options()
    if options.one:
        print(json.dumps(measure(options.ranks[0], options.tables)))
        return
    names = [name for name, _ in STEPS]
    print(f"{'ranks':>6} {'tables':>7} {'shards':>8} {'':>2}" + "".join(f"{name + ' s':>12}" for name in names), end="")
    print(f"{'total s':>12} {'before MB':>10} {'peak MB':>8} {'JSON MB':>8}")
    for ranks in options.ranks:
        command = [sys.executable, __file__, "--one", "--ranks", str(ranks), "--tables", str(options.tables)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        seconds = [found["seconds"][name] for name in names]
        print(f"{ranks:>6} {found['tables']:>7} {found['shards']:>8} {'':>2}", end="")
        print("".join(f"{each:>12.2f}" for each in [*seconds, sum(seconds)]), end="")
        print(f" {found['before_mb']:>10.0f} {found['peak_mb']:>8.0f} {found['json_mb']:>8.1f}")


if __name__ == "__main__":
    main()
