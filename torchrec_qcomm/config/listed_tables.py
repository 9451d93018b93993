"""Checks that a ``tables`` block lists the tables of the model."""

from __future__ import annotations

from collections.abc import Iterable

from torchrec_qcomm.config.qcomm_config import QCommConfig
from torchrec_qcomm.errors import ConfigError, describe
from torchrec_qcomm.policy import Table


def check_tables(config: QCommConfig, tables: Iterable[Table]) -> None:
    """Refuse a ``tables`` block with other tables than the model: what ``check`` printed must be what runs.

    Args:
        config: without the block, nothing is checked.
        tables: all tables of the model.

    Raises:
        ConfigError: names every table that only one of them has, or that has other sizes.
    """
    if not config.tables:
        return
    listed = {table.name: table.build() for table in config.tables}
    real = {table.name: table for table in tables}
    todo = "Make the `tables` block that of the model, or leave it out."
    problems = []
    for name in sorted(listed.keys() | real.keys()):
        where = f"{config.source}: tables: {name!r}"
        if name not in real:
            problems.append(describe(where, "not a table of the model", got=name, allowed=real, todo=todo))
        elif name not in listed:
            problems.append(describe(where, "the model has this table, the block has not", got=name, allowed=listed, todo=todo))
        elif listed[name] != real[name]:
            sizes = f"rows {real[name].rows}, dim {real[name].dim}, as in the model"
            got = f"rows {listed[name].rows}, dim {listed[name].dim}"
            problems.append(describe(where, "other sizes than in the model", got=got, allowed=sizes, todo=todo))
    if problems:
        raise ConfigError("\n".join(problems))
