"""Checks between the blocks of a config: what can only be seen once every block is valid by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchrec_qcomm.errors import describe
from torchrec_qcomm.policy.globs import matches, unmatched_glob, without_match

if TYPE_CHECKING:
    from torchrec_qcomm.config.models import QCommConfig


def cross_check(config: QCommConfig, source: str) -> list[str]:
    """Every problem between blocks, worded. Globs are checked only if the file lists its tables."""
    return [*_double_tables(config, source), *_unmatched(config, source), *dict.fromkeys(_pooling(config, source))]


def _double_tables(config: QCommConfig, source: str) -> Iterator[str]:
    for name, count in Counter(table.name for table in config.tables).items():
        if count > 1:
            yield describe(f"{source}: tables", f"a table is listed {count} times", got=name, allowed="each name once")


def _unmatched(config: QCommConfig, source: str) -> Iterator[str]:
    names = [table.name for table in config.tables]
    if not names:
        return
    for index, rule in enumerate(config.policy.rules):
        for glob in rule.unmatched_globs(names):
            yield unmatched_glob(f"{source}: precision.rules.{index}.tables", glob, names)
    for index, entry in enumerate(config.sharding):
        for glob in () if entry.allow_unmatched else without_match(entry.tables, names):
            yield unmatched_glob(f"{source}: sharding.{index}.tables", glob, names)


def _pooling(config: QCommConfig, source: str) -> Iterator[str]:
    for index, entry in enumerate(config.sharding):
        for table in config.tables:
            named = matches(table.name, entry.tables)
            if named and entry.pooling_factors is not None and len(entry.pooling_factors) != table.num_features:
                wrong = f"{len(entry.pooling_factors)} values for the {table.num_features} features of table {table.name!r}"
                where = f"{source}: sharding.{index}.pooling_factors"
                yield describe(where, wrong, got=list(entry.pooling_factors), allowed="one pooling factor per feature")
