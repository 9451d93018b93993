"""A plan in a file: written where a job runs, and read anywhere else. It holds no policy, since that is the config's."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchrec_qcomm.errors import PlannerError, PolicyError, describe
from torchrec_qcomm.planner.job import Job, Machines, PlannedTable, Replicas
from torchrec_qcomm.planner.kinds import KINDS
from torchrec_qcomm.planner.sources.options import check_ranks
from torchrec_qcomm.planner.sources.stats_csv import read_stats_csv
from torchrec_qcomm.policy import Policy, Table

SCHEMA, VERSION = "torchrec-qcomm-plan", 1
"""The first keys of a plan file. The version grows when earlier readers would misread a file."""

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_SHARDS = ("ranks", "shard_rows", "shard_dims", "row_offsets")


def write_plan(job: Job, path: str | os.PathLike[str]) -> None:
    """Write a job without its policy, as JSON. The file is replaced in one step, so several ranks may write the same one.

    Raises:
        PlannerError: it cannot be written.
    """
    path = Path(path)
    machines, replicas = job.machines, job.replicas
    data = {
        "schema": SCHEMA,
        "version": VERSION,
        "machines": {name: getattr(machines, name) for name in Machines.__dataclass_fields__},
        "batch_size": job.batch_size,
        "hierarchical_row_wise": job.hierarchical_row_wise,
        "replicas": replicas and {name: getattr(replicas, name) for name in Replicas.__dataclass_fields__},
        "index_bytes": job.index_bytes,
        "length_bytes": job.length_bytes,
        "weight_bytes": job.weight_bytes,
        "assumptions": list(job.assumptions),
        "untouched": list(job.untouched),
        "planned_memory": None if job.planned_memory is None else job.planned_memory.tolist(),
        "tables": [_table_dict(table) for table in job.tables],
    }
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(data) + "\n", encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        raise PlannerError(describe(str(path), "cannot be written", got=str(error), allowed="a place for a file")) from error


def read_plan(path: str | os.PathLike[str], policy: Policy | None = None) -> Job:
    """Read what `write_plan` wrote.

    Raises:
        PlannerError: it is no such file. The message names the file and the key path.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PlannerError(describe(str(path), "cannot be read", got=str(error), allowed="a JSON file")) from error
    top = _Value(str(path), "", data)
    schema, version = top["schema"], top["version"]
    if schema.data != SCHEMA:
        raise schema.wrong("not a plan of this package", [SCHEMA])
    if version.data != VERSION:
        raise version.wrong("written by another version of this package", [VERSION])
    machines, memory = top["machines"], top["planned_memory"]
    job = Job(
        tuple(map(_table, top["tables"].items())),
        Machines(
            machines["world_size"].count(),
            machines["devices_per_host"].count_or_none(),
            machines["pod_hosts"].count(),
            machines["intra_host_gb_per_s"].number(),
            machines["inter_host_gb_per_s"].number(),
            None if machines["device"].data is None else machines["device"].text(),
        ),
        top["batch_size"].count(),
        hierarchical_row_wise=top["hierarchical_row_wise"].flag(),
        replicas=_replicas(top["replicas"]),
        index_bytes=top["index_bytes"].count(),
        length_bytes=top["length_bytes"].count(),
        weight_bytes=top["weight_bytes"].count(),
        assumptions=top["assumptions"].texts(),
        untouched=top["untouched"].texts(),
        planned_memory=None if memory.data is None else np.array(memory.numbers()),
    )
    if job.planned_memory is not None and len(job.planned_memory) != job.machines.world_size:
        raise memory.wrong("not a number for each rank", f"{job.machines.world_size} numbers")
    check_ranks(job)
    return job.under(policy or Policy())


def read_plan_or_stats(
    path: str | os.PathLike[str], machines: Machines | None = None, batch_size: int | None = None, policy: Policy | None = None
) -> Job:
    """Read a plan file, or TorchRec's planner statistics as CSV. The content tells which of them it is.

    With statistics in ``..._tables.csv``, the file ``..._ranks.csv`` beside it is read too, if there is one.

    Args:
        path: of the file.
        machines: replace those of the file, and must have as many ranks.
        batch_size: replaces that of the file.
        policy: the codecs; by default none.

    Raises:
        PlannerError: the file is neither, or is for another number of ranks.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8") as file:
            start = file.read(4096).lstrip()
    except (OSError, UnicodeDecodeError) as error:
        allowed = "a plan file, or planner statistics as CSV"
        raise PlannerError(describe(str(path), "cannot be read", got=str(error), allowed=allowed)) from error
    if not start.startswith(("{", "[")):
        head, found, tail = path.name.rpartition("tables")
        ranks = path.with_name(f"{head}ranks{tail}")
        beside = ranks if found and ranks.is_file() else None
        return read_stats_csv(path, machines, batch_size, ranks_path=beside, policy=policy)
    job = read_plan(path, policy)
    if machines is not None:
        if machines.world_size != job.machines.world_size:
            wrong = "the plan is for another number of ranks"
            todo = "Plan again for these machines."
            planned = [job.machines.world_size]
            raise PlannerError(describe(f"{path}: machines", wrong, got=machines.world_size, allowed=planned, todo=todo))
        job = replace(job, machines=machines)
    return job if batch_size is None else replace(job, batch_size=batch_size)


def _table_dict(table: PlannedTable) -> dict[str, Any]:
    return {
        "name": table.table.name,
        "rows": table.table.rows,
        "dim": table.table.dim,
        "module": table.module,
        "features": list(table.features),
        "pooling": list(table.pooling),
        "num_poolings": list(table.num_poolings),
        "sharding_type": table.sharding_type,
        **{name: getattr(table, name).tolist() for name in _SHARDS},
        "pooled": table.pooled,
        "weighted": table.weighted,
        "payload": str(table.payload).removeprefix("torch."),
        "value_bytes": table.value_bytes,
    }


def _replicas(value: _Value) -> Replicas | None:
    if value.data is None:
        return None
    node = value["node_group_size"].count_or_none()
    return Replicas(value["group_size"].count(), value["strided"].flag(), value["sync_interval"].count(), node)


def _table(value: _Value) -> PlannedTable:
    shards = {name: np.array(value[name].counts(), dtype=np.int64) for name in _SHARDS}
    for name in _SHARDS[1:]:
        if len(shards[name]) != len(shards["ranks"]):
            raise value[name].wrong("not one for each shard", f"{len(shards['ranks'])} numbers, as many as ranks")
    features = value["features"].texts()
    for key, lengths in (("pooling", (len(features),)), ("num_poolings", (0, len(features)))):
        if len(value[key].numbers()) not in lengths:
            raise value[key].wrong("not one for each feature", f"{len(features)} numbers")
    try:
        table = Table(value["name"].text(), value["rows"].count(), value["dim"].count())
    except PolicyError as error:
        raise PlannerError(f"{value.where}: {error}") from error
    return PlannedTable(
        table,
        value["module"].text(),
        features,
        value["pooling"].numbers(),
        value["sharding_type"].choice(kind.name for kind in KINDS),
        **shards,
        pooled=value["pooled"].flag(),
        weighted=value["weighted"].flag(),
        payload=_DTYPES[value["payload"].choice(_DTYPES)],
        value_bytes=value["value_bytes"].count(),
        num_poolings=value["num_poolings"].numbers(),
    )


class _Value:
    """A value of the file that knows its key path."""

    def __init__(self, path: str, key: str, data: Any) -> None:
        self._path, self._key, self.data = path, key, data

    @property
    def where(self) -> str:
        return f"{self._path}: {self._key}" if self._key else self._path

    def wrong(self, wrong: str, allowed: Iterable[object] | str) -> PlannerError:
        return PlannerError(describe(self.where, wrong, got=self.data, allowed=allowed))

    def __getitem__(self, key: str) -> _Value:
        if not isinstance(self.data, Mapping):
            raise self.wrong("not a mapping", f"one with the key {key!r}")
        if key not in self.data:
            todo = "Was it written by another version?"
            raise PlannerError(
                describe(self.where, f"the key {key!r} is missing", got=list(self.data), allowed=[key], todo=todo)
            )
        return self._at(key, self.data[key])

    def items(self) -> list[_Value]:
        if not isinstance(self.data, list):
            raise self.wrong("not a list", "a list")
        return [self._at(str(index), item) for index, item in enumerate(self.data)]

    def _at(self, key: str, data: Any) -> _Value:
        return _Value(self._path, f"{self._key}.{key}" if self._key else key, data)

    def text(self) -> str:
        if not isinstance(self.data, str):
            raise self.wrong("not a text", "a text")
        return self.data

    def flag(self) -> bool:
        if not isinstance(self.data, bool):
            raise self.wrong("neither true nor false", ["true", "false"])
        return self.data

    def choice(self, allowed: Iterable[str]) -> str:
        if self.data not in (allowed := list(allowed)):
            raise self.wrong("unknown", allowed)
        return str(self.data)

    def count(self, least: int = 1) -> int:
        if isinstance(self.data, bool) or not isinstance(self.data, int) or self.data < least:
            raise self.wrong("not a whole number", f"{least} or more")
        return self.data

    def count_or_none(self) -> int | None:
        return None if self.data is None else self.count()

    def number(self) -> float:
        if isinstance(self.data, bool) or not isinstance(self.data, (int, float)) or not 0 <= self.data < float("inf"):
            raise self.wrong("not a number", "0 or more")
        return float(self.data)

    def counts(self) -> list[int]:
        return [item.count(0) for item in self.items()]

    def numbers(self) -> tuple[float, ...]:
        return tuple(item.number() for item in self.items())

    def texts(self) -> tuple[str, ...]:
        return tuple(item.text() for item in self.items())
