"""What the example prints, and the same as JSON."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torchrec_qcomm as qc
from dlrm_lib.data import ClickData
from dlrm_lib.errors import bad
from dlrm_lib.exchange import DATA_PARALLEL, DIRECTIONS, ONE_RANK, TableView
from dlrm_lib.ranks import Ranks
from dlrm_lib.training import Run, Settings

FP32, POLICY = "FP32 wire", "policy"
PACKAGES = ("torch", "torchrec", "torchrec-qcomm")


def table_text(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns under a header: the first ``left`` aligned left, the others right.

    >>> print(table_text(["table", "rows"], [["a", "10"], ["bb", "9"]]))
    table  rows
    a        10
    bb        9
    """
    lines = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def policy_text(views: Sequence[TableView]) -> str:
    """The resolved policy, table by table, both directions."""
    rows = [
        [v.table.name, v.codec("forward"), v.codec("backward"), f"{v.table.rows:,}", str(v.table.dim), _place(v)] for v in views
    ]
    return table_text(["table", "forward", "backward", "rows", "dim", "sharding"], rows, left=3)


def _place(view: TableView) -> str:
    where = ",".join(map(str, view.ranks))
    return f"{view.sharding} on {where}" if where and view.sharding != "data_parallel" else view.sharding


def arm_text(label: str) -> str:
    """The label of an arm, and what stands behind it."""
    same = " (the plugin with `none`: bit-equal to TorchRec, but for the order of row-wise sums)"
    return label + same if label == FP32 else label


def quality_text(runs: Mapping[str, Run]) -> str:
    """Quality and time of the arms side by side."""
    arms = list(runs.values())
    rows = [
        ["held-out AUC", *(_number(run.quality.auc) for run in arms)],
        ["held-out normalized entropy", *(_number(run.quality.normalized_entropy) for run in arms)],
        ["time per step, ms (median)", *(f"{run.median_step_ms:.1f}" for run in arms)],
        ["training, s", *(f"{run.seconds:.1f}" for run in arms)],
    ]
    header = ["", *runs]
    if len(arms) == 2:
        header.append("difference")
        first, second = arms
        rows[0].append(_difference(first.quality.auc, second.quality.auc))
        rows[1].append(_difference(first.quality.normalized_entropy, second.quality.normalized_entropy))
        rows[2].append(f"{second.median_step_ms - first.median_step_ms:+.1f}")
        rows[3].append(f"{second.seconds - first.seconds:+.1f}")
    return table_text(header, rows)


def traffic_text(label: str, run: Run, views: Sequence[TableView]) -> str:
    """Megabytes (1e6) that went over the wire, by table and direction, beside what FP32 would have taken."""
    heading = "Bytes on the wire in training, all ranks" + ("" if label == FP32 else f", {label} beside FP32")
    cells = run.traffic.by_table()
    if not cells:
        return f"{heading}: nothing was exchanged"
    exchanged = {table for table, _ in cells}
    rows = []
    for table in (view.table.name for view in views if view.table.name in exchanged):
        row = [table]
        for direction in DIRECTIONS:
            cell = cells.get((table, direction))
            row += _bytes(cell.fp32_bytes, cell.wire_bytes) if cell else ["-", "-", "-"]
        rows.append(row)
    total = ["all tables"]
    for direction in DIRECTIONS:
        total += _bytes(run.traffic.fp32_bytes(direction=direction), run.traffic.wire_bytes(direction=direction))
    header = ["MB", "forward FP32", "sent", "saving", "backward FP32", "sent", "saving"]
    return f"{heading}:\n\n{table_text(header, [*rows, total])}"


def _bytes(fp32: int, wire: int) -> list[str]:
    return [f"{fp32 / 1e6:.2f}", f"{wire / 1e6:.2f}", f"{fp32 / wire:.2f}x" if wire else "-"]


def _number(value: float | None) -> str:
    return "all labels equal" if value is None else f"{value:.5f}"


def _difference(first: float | None, second: float | None) -> str:
    return "-" if first is None or second is None else f"{second - first:+.5f}"


def warn_no_exchange(missing: Mapping[str, str]) -> None:
    """Say on stderr, in a box, that the policy quantizes tables of which nothing is exchanged."""
    reasons = set(missing.values())
    if reasons == {ONE_RANK}:
        lines = [f"WARNING: {ONE_RANK}, so nothing is exchanged, and the policy changes nothing."]
    else:
        lines = ["WARNING: the policy quantizes these tables, but nothing of them is exchanged:", ""]
        lines += [f"  {table}: {reason}" for table, reason in missing.items()]
        lines += ["", "Nothing is saved on them."]
    if DATA_PARALLEL in reasons:
        lines += ["Constrain those that are data_parallel to table_wise or column_wise", "under `sharding:` in the config."]
    width = max(map(len, lines))
    box = ["!" * (width + 6), *(f"!! {line.ljust(width)} !!" for line in lines), "!" * (width + 6)]
    print("\n" + "\n".join(box) + "\n", file=sys.stderr, flush=True)


def versions() -> dict[str, str]:
    """The versions that a number was measured with."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed as a package"
    return found


def as_dict(
    data: ClickData,
    settings: Settings,
    ranks: Ranks,
    config: str | None,
    views: Sequence[TableView],
    missing: Mapping[str, str],
    runs: Mapping[str, Run],
) -> dict[str, Any]:
    """All that the example prints, and the losses, as plain values."""
    return {
        "config": config,
        "data": {"name": data.name, "samples": len(data.labels), "base_rate": data.base_rate, "train_samples": len(data.train)},
        "settings": asdict(settings),
        "world_size": ranks.world_size,
        "device": ranks.device.type,
        "versions": versions(),
        "policy": {
            v.table.name: {
                "rows": v.table.rows,
                "dim": v.table.dim,
                "sharding": v.sharding,
                "ranks": list(v.ranks),
                "quantizes": v.quantizes,
                **v.codecs,
            }
            for v in views
        },
        "warnings": {"tables_without_exchange": dict(missing)},
        "arms": {label: _run_dict(run) for label, run in runs.items()},
    }


def _run_dict(run: Run) -> dict[str, Any]:
    traffic: qc.Traffic = run.traffic
    tables: dict[str, dict[str, Any]] = {}
    for (table, direction), cell in traffic.by_table().items():
        tables.setdefault(table, {})[direction] = {"wire_bytes": cell.wire_bytes, "fp32_bytes": cell.fp32_bytes}
    return {
        **asdict(run.quality),
        "losses": run.losses,
        "step_ms_median": run.median_step_ms,
        "step_ms_is": "wall time on rank 0 of the machine of this run",
        "training_seconds": run.seconds,
        "traffic": {
            "total": {
                d: {"wire_bytes": traffic.wire_bytes(direction=d), "fp32_bytes": traffic.fp32_bytes(direction=d)}
                for d in DIRECTIONS
            },
            "tables": tables,
        },
    }


def write_json(path: str, report: Mapping[str, Any]) -> None:
    """Write the report.

    Raises:
        ExampleError: the file cannot be written.
    """
    try:
        Path(path).write_text(json.dumps(report, indent=2) + "\n")
    except OSError as error:
        raise bad("--json", "cannot write the file", got=path, allowed=f"a writable file ({error.strerror})") from None
