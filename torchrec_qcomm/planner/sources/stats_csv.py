"""From TorchRec's planner statistics, as CSV, to a job.

The file has one row for each table, with the columns of the "Parameter Info" that ``EmbeddingStats`` prints
(planner/stats.py:860-1000):

    sum_pooling_factor   ids of a bag, added up over the features        sum_num_poolings   bags of a sample, likewise
    num_indices          ids of a sample, all features: the sum of each feature's bags times its ids of a bag
    batch_size           samples of a rank, feature by feature: ``2560``, ``2560*4`` (four features), ``n/a``: the plan's own
    emb_dim, shard_dim   columns of the table, and of a column-wise shard
    ranks                ``0-95``, or ``11,27,57``: sorted, so it is not known which of them has which shard

Statistics have only sums over features, so the features of a table are taken as alike. The sum of bags is exact, and so is that
of ids if there is a column ``num_indices``.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from torchrec_qcomm.errors import PlannerError, describe
from torchrec_qcomm.planner.job import Job, Machines, PlannedTable
from torchrec_qcomm.planner.kinds import KINDS, Kind
from torchrec_qcomm.planner.search.topology import DEFAULT_RATES
from torchrec_qcomm.planner.sources.options import check_ranks
from torchrec_qcomm.planner.sources.shards import dealt_rows
from torchrec_qcomm.policy import Policy, Table

ABBREVIATIONS = {kind.statistics: kind for kind in KINDS}
NEEDED = ("fqn", "sharding", "sum_pooling_factor", "output", "features", "emb_dim", "hash_size", "ranks")
"""Columns that the file must have. It may also have sum_num_poolings, num_indices, weighted, shard_dim, batch_size, hbm_gb."""

_GIB, _MIB = 2.0**30, 2.0**20


def read_stats_csv(
    path: str | Path,
    machines: Machines | None = None,
    batch_size: int | None = None,
    *,
    ranks_path: str | Path | None = None,
    policy: Policy | None = None,
    payload: torch.dtype = torch.float32,
    value_bytes: int | None = None,
) -> Job:
    """The job of a plan whose statistics were printed.

    Args:
        path: the file with a row for each table.
        machines: that the plan is for. By default there are as many ranks as the file names, and hosts are not known.
        batch_size: samples of a rank; by default the one that most features have.
        ranks_path: a file with a row for each rank, ``rank,hbm_gb,output_mb``: what the planner reckons with in all. It also
            tells how many bytes a weight has.
        policy: the codecs; by default none.
        payload: dtype of the lookups, which the statistics do not tell.
        value_bytes: bytes of a weight; by default as ``ranks_path`` tells, else 4.

    Raises:
        PlannerError: the file has no such statistics, or a wrong value. The message names file, line and column.
    """
    rows = _rows(Path(path), NEEDED)
    assumed = ["features of a table are alike: TorchRec's statistics hold only their sums"]
    sizes = [size for row in rows if (size := row.batch_sizes()) is not None]
    if batch_size is None:
        batch_size = _common(path, sizes, assumed)
    tables = _told_apart((row.table(batch_size, payload, value_bytes or 4) for row in rows), assumed)
    if machines is None:
        machines = Machines(max(max(row.ranks()) for row in rows) + 1, None, 1, *DEFAULT_RATES)
        assumed.append(f"{machines.world_size} ranks, the highest that the plan names; how many a host has is not known")
        assumed.append("the rates of links that TorchRec takes by default")
    assumed.append(f"lookups are {str(payload).removeprefix('torch.')} before they are encoded: the statistics do not say")
    job = Job(tables, machines, batch_size, policy or Policy(), planned_memory=_memory(rows, machines.world_size))
    check_ranks(job)
    if ranks_path is not None:
        job = _with_ranks(job, Path(ranks_path), value_bytes, assumed)
    elif value_bytes is None:
        assumed.append("weights have 4 bytes: the statistics do not say")
    return replace(job, assumptions=tuple(assumed))


def output_values(job: Job) -> np.ndarray:
    """``[world]`` values that TorchRec's planner counts as a rank's output in a step: ``Output MB`` over a weight's bytes.

    As in planner/shard_estimators.py:696-853, for pooling factors of 1 and more; for smaller ones, later versions count less.
    """
    world = job.machines.world_size
    counted = np.zeros(world)
    for table in job.tables:
        bags = np.array(table.num_poolings or (1.0,) * len(table.features))
        vectors = job.batch_size * float((bags if table.pooled else bags * np.array(table.pooling)).sum())
        if not table.kind.hops:
            counted += vectors * table.table.dim
            continue
        if not table.pooled and table.kind.rows_dealt_out:
            vectors /= len(table.ranks)
        np.add.at(counted, table.ranks, vectors * world * table.shard_dims * (table.shard_rows > 0))
    return counted


class _Row:
    """One row of a file, which knows its file and line."""

    def __init__(self, path: Path, line: int, values: dict[str, str]) -> None:
        self._where, self._values = f"{path}: line {line}", values

    def text(self, column: str) -> str:
        return (self._values.get(column) or "").strip()

    def number(self, column: str, default: float | None = None) -> float:
        text = self.text(column)
        if not text and default is not None:
            return default
        try:
            number = float(text)
        except ValueError:
            raise self.wrong(column, "not a number", "a number of 0 or more") from None
        if not 0 <= number < float("inf"):
            raise self.wrong(column, "not a number of anything", "a number of 0 or more")
        return number

    def count(self, column: str, default: int | None = None) -> int:
        number = self.number(column, default)
        if number < 1 or number % 1:
            raise self.wrong(column, "not a whole number", "1 or more")
        return int(number)

    def choice(self, column: str, allowed: Iterable[str], default: str | None = None) -> str:
        text = self.text(column) or default
        if text not in (allowed := list(allowed)):
            raise self.wrong(column, "unknown", allowed)
        return str(text)

    def wrong(self, column: str, wrong: str, allowed: Iterable[str] | str) -> PlannerError:
        return PlannerError(describe(f"{self._where}: {column}", wrong, got=self.text(column), allowed=allowed))

    def ranks(self) -> list[int]:
        """``0-95``, or numbers with commas."""
        found: list[int] = []
        for part in self.text("ranks").split(","):
            match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
            if not match:
                raise self.wrong("ranks", "no ranks", "as in 0-95, or 11,27,57")
            first, last = int(match[1]), int(match[2] or match[1])
            found += range(first, last + 1)
        if not found:
            raise self.wrong("ranks", "no ranks", "as in 0-95, or 11,27,57")
        return found

    def batch_sizes(self) -> list[int] | None:
        """For each feature; ``None``: they are the plan's."""
        text = self.text("batch_size")
        if text in ("", "n/a"):
            return None
        found: list[int] = []
        for part in text.split(","):
            match = re.fullmatch(r"\s*(\d+)(?:\s*\*\s*(\d+))?\s*", part)
            if not match or not int(match[1]):
                raise self.wrong("batch_size", "no batch sizes", "as in 2560, 2560*4, or n/a")
            found += [int(match[1])] * int(match[2] or 1)
        if len(found) != self.count("features"):
            raise self.wrong("batch_size", "not one for each feature", f"{self.count('features')} of them")
        return found

    def table(self, batch_size: int, payload: torch.dtype, value_bytes: int) -> PlannedTable:
        module, _, name = self.text("fqn").rpartition(".")
        if not name:
            raise self.wrong("fqn", "no name", "module.table")
        features, rows, dim = self.count("features"), self.count("hash_size"), self.count("emb_dim")
        sizes = np.array(self.batch_sizes() or [batch_size] * features)
        ids_of_bag, bags_of_sample = self.number("sum_pooling_factor") / features, self.number("sum_num_poolings", features)
        ids = self.number("num_indices", ids_of_bag * bags_of_sample)
        # Figures have three decimals. If their product differs from the printed sum by more than that, features are not alike.
        if bags_of_sample and abs(ids_of_bag * bags_of_sample - ids) > 0.002 * (1 + ids_of_bag + bags_of_sample):
            ids_of_bag = ids / bags_of_sample
        bags = bags_of_sample / features * sizes / batch_size
        kind = ABBREVIATIONS[self.choice("sharding", ABBREVIATIONS)]
        ranks, shard_rows, shard_dims, offsets = self._shards(kind, rows, dim)
        return PlannedTable(
            Table(name, rows, dim),
            module,
            (name,) if features == 1 else tuple(f"{name}[{i}]" for i in range(features)),
            (ids_of_bag,) * features,
            kind.name,
            ranks,
            shard_rows,
            shard_dims,
            offsets,
            pooled=self.choice("output", ("pooled", "sequence")) == "pooled",
            weighted=self.choice("weighted", ("weighted", "unweighted"), "unweighted") == "weighted",
            payload=payload,
            value_bytes=value_bytes,
            num_poolings=() if np.all(bags == 1.0) else tuple(bags.tolist()),
        )

    def _shards(self, kind: Kind, rows: int, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Ranks, rows, dims and first rows, as TorchRec cuts tables (torchrec/distributed/sharding_plan.py:92-325)."""
        if not kind.hops:
            return (np.empty(0, dtype=np.int64),) * 4
        ranks, shard_dim = np.array(self.ranks(), dtype=np.int64), self.count("shard_dim", dim)
        columns, rest = divmod(dim, shard_dim)
        by_rows = kind.rows_dealt_out
        if rest or len(ranks) % columns or (not by_rows and len(ranks) != columns):
            many = f"{columns} shards of columns" if by_rows else f"{columns} ranks"
            raise self.wrong("ranks", "they do not fit emb_dim and shard_dim", f"{many}, for dim {dim} cut to {shard_dim}")
        offsets, shard_rows = dealt_rows(rows, len(ranks) // columns)
        return ranks, np.tile(shard_rows, columns), np.full(len(ranks), shard_dim, dtype=np.int64), np.tile(offsets, columns)


def _rows(path: Path, needed: Sequence[str]) -> list[_Row]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            header = [name.strip() for name in reader.fieldnames or ()]
            if missing := [name for name in needed if name not in header]:
                if len(missing) == len(needed):
                    wrong = "neither a plan file nor planner statistics as CSV"
                    todo = "Both come from a run: see QCommStats(export=FILE) and export_plan."
                    raise PlannerError(describe(str(path), wrong, got=header, allowed=needed, todo=todo))
                wrong = f"no planner statistics: columns are missing ({', '.join(missing)})"
                raise PlannerError(describe(str(path), wrong, got=header, allowed=needed))
            reader.fieldnames = header
            rows = [_Row(path, reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PlannerError(describe(str(path), "cannot be read", got=str(error), allowed="a CSV file")) from error
    if not rows:
        raise PlannerError(describe(str(path), "no rows", got=0, allowed="a row or more"))
    return rows


def _common(path: str | Path, sizes: Iterable[list[int]], assumed: list[str]) -> int:
    counts = Counter(size for row in sizes for size in row)
    if not counts:
        todo = "Give the batch size."
        raise PlannerError(describe(f"{path}: batch_size", "no row gives one", got="n/a", allowed="1 or more", todo=todo))
    (batch_size, count), *_ = counts.most_common()
    if len(counts) > 1:
        assumed.append(f"batch size {batch_size} a rank, which {count} of {counts.total()} features have")
    return batch_size


def _memory(rows: Iterable[_Row], world: int) -> np.ndarray | None:
    memory = np.zeros(world)
    for row in rows:
        if not row.text("hbm_gb"):
            return None
        ranks = [rank for rank in row.ranks() if rank < world]
        np.add.at(memory, ranks, row.number("hbm_gb") * _GIB / len(ranks or [0]))
    return memory


def _told_apart(tables: Iterable[PlannedTable], assumed: list[str]) -> tuple[PlannedTable, ...]:
    """Number tables that share a name but not their sizes, since a policy cannot tell them apart: the second is ``name#2``."""
    sizes: dict[str, dict[Table, str]] = {}
    made, renamed = [], []
    for planned in tables:
        seen = sizes.setdefault(planned.table.name, {})
        name = seen.setdefault(planned.table, f"{planned.table.name}#{len(seen) + 1}" if seen else planned.table.name)
        if name != planned.table.name:
            renamed.append(name)
            planned = replace(planned, table=replace(planned.table, name=name))
        made.append(planned)
    if renamed:
        assumed.append(f"several tables have one name and other sizes, and a number behind it here: {', '.join(renamed)}")
    return tuple(made)


def _with_ranks(job: Job, path: Path, value_bytes: int | None, assumed: list[str]) -> Job:
    """The job with what the file of ranks tells besides: memory in all, and the bytes of a weight."""
    rows = {int(row.number("rank")): row for row in _rows(path, ("rank", "hbm_gb", "output_mb"))}
    world = job.machines.world_size
    if sorted(rows) != list(range(world)):
        wrong = "not the ranks of the plan"
        raise PlannerError(describe(f"{path}: rank", wrong, got=sorted(rows), allowed=f"0 to {world - 1}, each once"))
    ordered = [rows[rank] for rank in range(world)]
    job = replace(job, planned_memory=np.array([row.number("hbm_gb") for row in ordered]) * _GIB)
    if value_bytes is not None:
        return job
    outputs = np.array([row.number("output_mb") for row in ordered]) * _MIB
    values = output_values(job)
    known = (values > 0) & (outputs > 0)
    for size in (4, 2, 1):
        if known.any() and np.allclose(outputs[known], size * values[known], rtol=0.01):
            assumed.append(f"weights have {size} byte{'s' if size > 1 else ''}: as many as output_mb has for each value")
            return replace(job, tables=tuple(replace(table, value_bytes=size) for table in job.tables))
    assumed.append("weights have 4 bytes: output_mb is not that of any one size")
    return job
