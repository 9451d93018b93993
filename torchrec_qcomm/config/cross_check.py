"""Checks between the blocks of a config: they run once every block is valid by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from torchrec_qcomm.config.blocks import ShardingConfig, TableConfig
from torchrec_qcomm.errors import describe
from torchrec_qcomm.policy import Policy
from torchrec_qcomm.policy.globs import matches, unmatched_glob, without_match


def cross_check(source: str, policy: Policy, sharding: Sequence[ShardingConfig], tables: Sequence[TableConfig]) -> list[str]:
    """Every problem between blocks, worded. Globs are checked only if the file lists its tables."""
    unmatched = _unmatched(source, policy, sharding, [table.name for table in tables]) if tables else ()
    return [*_double_tables(source, tables), *unmatched, *dict.fromkeys(_pooling(source, sharding, tables))]


def _double_tables(source: str, tables: Sequence[TableConfig]) -> Iterator[str]:
    for name, count in Counter(table.name for table in tables).items():
        if count > 1:
            yield describe(f"{source}: tables", f"a table is listed {count} times", got=name, allowed="each name once")


def _unmatched(source: str, policy: Policy, sharding: Sequence[ShardingConfig], names: Sequence[str]) -> Iterator[str]:
    for index, rule in enumerate(policy.rules):
        for glob in rule.unmatched_globs(names):
            yield unmatched_glob(f"{source}: precision.rules.{index}.tables", glob, names)
    for index, entry in enumerate(sharding):
        for glob in () if entry.allow_unmatched else without_match(entry.tables, names):
            yield unmatched_glob(f"{source}: sharding.{index}.tables", glob, names)


def _pooling(source: str, sharding: Sequence[ShardingConfig], tables: Sequence[TableConfig]) -> Iterator[str]:
    for index, entry in enumerate(sharding):
        for table in tables:
            named = matches(table.name, entry.tables)
            if named and entry.pooling_factors is not None and len(entry.pooling_factors) != table.num_features:
                wrong = f"{len(entry.pooling_factors)} values for the {table.num_features} features of table {table.name!r}"
                where = f"{source}: sharding.{index}.pooling_factors"
                yield describe(where, wrong, got=list(entry.pooling_factors), allowed="one pooling factor per feature")
