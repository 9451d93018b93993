"""What the policy does in this run: which codec each table gets, and which tables are not exchanged at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan, ShardingType

import torchrec_qcomm as qc

DIRECTIONS = ("forward", "backward")
LINKS = ("self", "intra_host", "inter_host")
ONE_RANK = "there is one rank only"
DATA_PARALLEL = "the planner made it data_parallel: every rank has a copy"


@dataclass(frozen=True, slots=True)
class TableView:
    """One table of the run.

    Attributes:
        table: name and sizes.
        sharding: the sharding type of the plan.
        ranks: the ranks that own a part of it.
        codecs: ``{direction: {link: codec}}``, as text.
        quantizes: whether a rule or the default gives it a codec that quantizes.
    """

    table: qc.Table
    sharding: str
    ranks: tuple[int, ...]
    codecs: Mapping[str, Mapping[str, str]]
    quantizes: bool

    def codec(self, direction: str) -> str:
        """The codec of a direction in a few words: one name, or one for each link where they differ."""
        by_link = self.codecs[direction]
        if len(set(by_link.values())) == 1:
            return by_link["inter_host"]
        return ", ".join(f"{link}: {name}" for link, name in by_link.items())

    def no_exchange(self, world_size: int) -> str | None:
        """Why nothing of the table goes over the wire; None if something does."""
        if world_size == 1:
            return ONE_RANK
        if self.sharding == ShardingType.DATA_PARALLEL.value:
            return DATA_PARALLEL
        return None


def view_tables(policy: qc.Policy, tables: Iterable[qc.Table], plan: ShardingPlan) -> list[TableView]:
    """What the policy and the plan say of each table."""
    tables = list(tables)
    resolved = policy.resolve(tables)
    placed: dict[str, ParameterSharding] = {}
    for module_plan in plan.plan.values():
        if isinstance(module_plan, EmbeddingModuleShardingPlan):
            placed.update(module_plan)
    return [
        TableView(
            table=table,
            sharding=placed[table.name].sharding_type,
            ranks=tuple(placed[table.name].ranks or ()),
            codecs={d: {link: str(resolved.codec(table.name, d, link)) for link in LINKS} for d in DIRECTIONS},
            quantizes=resolved.quantizes(table.name),
        )
        for table in tables
    ]


def without_exchange(views: Iterable[TableView], world_size: int, traffic: qc.Traffic | None = None) -> dict[str, str]:
    """The tables that should be quantized and are not exchanged, and why.

    Args:
        views: of all tables.
        world_size: number of ranks.
        traffic: what was counted. A table of which no byte was counted is found too, whatever the plan says.
    """
    moved = {table for (table, _), cell in traffic.by_table().items() if cell.wire_bytes} if traffic is not None else None
    found = {}
    for view in views:
        if not view.quantizes:
            continue
        reason = view.no_exchange(world_size)
        if reason is None and moved is not None and view.table.name not in moved:
            reason = f"the counters saw no byte of it ({view.sharding})"
        if reason is not None:
            found[view.table.name] = reason
    return found
