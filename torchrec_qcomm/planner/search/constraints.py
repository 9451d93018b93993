"""What the planner may do with each table: from globs over table names to TorchRec's ``ParameterConstraints``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchrec.distributed.planner import ParameterConstraints

from torchrec_qcomm.errors import ConfigError, PolicyError, describe
from torchrec_qcomm.planner.search.tables import ModelTable
from torchrec_qcomm.policy.globs import matches, unmatched_glob, without_match


@dataclass(frozen=True, slots=True)
class Constraint:
    """Constraints for the tables that match a glob. Fields are those of ``ParameterConstraints``; ``None`` says nothing.

    Attributes:
        tables: globs over table names.
        allow_unmatched: whether a glob may match no table. By default that is an error.
    """

    tables: tuple[str, ...]
    sharding_types: tuple[str, ...] | None = None
    compute_kernels: tuple[str, ...] | None = None
    min_partition: int | None = None
    pooling_factors: tuple[float, ...] | None = None
    allow_unmatched: bool = False


def build_constraints(
    constraints: Sequence[Constraint],
    tables: Iterable[ModelTable],
    pooling: Mapping[str, Sequence[float]] | None = None,
    where: str = "sharding",
) -> dict[str, ParameterConstraints]:
    """Resolve globs on the tables of a model; the first constraint that matches wins, field by field.

    Args:
        constraints: in order.
        tables: all tables of the model.
        pooling: pooling factors by table name, for tables that get none from a constraint.
        where: what error messages call the list of constraints.

    Returns:
        Constraints by exact table name. Tables about which nothing is said are left out.

    Raises:
        PolicyError: a glob matches no table, or pooling factors do not fit the features of a table.
    """
    known = {entry.table.name: entry for entry in tables}
    problems = [
        unmatched_glob(f"{where}.{index}.tables", glob, known)
        for index, constraint in enumerate(constraints)
        for glob in (() if constraint.allow_unmatched else without_match(constraint.tables, known))
    ]
    resolved: dict[str, ParameterConstraints] = {}
    for name, entry in known.items():
        fields = _first_given(constraints, name)
        factors = fields.pop("pooling_factors", None) or (pooling or {}).get(name)
        if factors is not None and len(factors) != len(entry.features):
            wrong = f"{len(factors)} pooling factors for {len(entry.features)} features"
            problems.append(describe(f"{where}: table {name!r}", wrong, got=list(factors), allowed=entry.features))
        if fields or factors:
            # TorchRec's own default is one factor, however many features there are.
            resolved[name] = ParameterConstraints(**fields, pooling_factors=list(factors or [1.0] * len(entry.features)))
    if problems:
        raise PolicyError("\n".join(problems))
    return resolved


def check_offered(
    constraints: Mapping[str, ParameterConstraints], offered: Mapping[str, Sequence[str]], device: str, where: str = "sharding"
) -> None:
    """Refuse constraints that leave a table nothing to choose from: TorchRec's planner fails then without saying where.

    Args:
        constraints: by table name.
        offered: for each table that is checked, the sharding types that its sharder has.
        device: that they have it on, for the message.
        where: what error messages call the list of constraints.

    Raises:
        ConfigError: names every such table.
    """
    problems = []
    for name in sorted(offered.keys() & constraints.keys()):
        wanted = constraints[name].sharding_types
        if wanted and not set(wanted) & set(offered[name]):
            wrong = f"none of the sharding types of table {name!r} can be had on {device}"
            problems.append(describe(where, wrong, got=list(wanted), allowed=offered[name] or "nothing"))
    if problems:
        raise ConfigError("\n".join(problems))


def _first_given(constraints: Sequence[Constraint], name: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for constraint in constraints:
        if matches(name, constraint.tables):
            for field in ("sharding_types", "compute_kernels", "min_partition", "pooling_factors"):
                value = getattr(constraint, field)
                if value is not None:
                    fields.setdefault(field, list(value) if isinstance(value, tuple) else value)
    return fields
