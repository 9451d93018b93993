"""A whole config file: its blocks, all valid and fitting each other."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, PrivateAttr, ValidationError

from torchrec_qcomm.config import blocks as b
from torchrec_qcomm.config import fields as f
from torchrec_qcomm.config.cross_check import cross_check
from torchrec_qcomm.config.wording import problems_of, raise_problems, worded_empty
from torchrec_qcomm.config.yaml_file import empty_keys, read_yaml
from torchrec_qcomm.errors import ConfigError, describe
from torchrec_qcomm.policy import Policy
from torchrec_qcomm.policy.globs import matches


class QCommConfig(f.Strict):
    """A whole config file, valid.

    Attributes:
        batch_size: samples per rank, for the planner.
        precision: becomes ``policy``.
        sharding: becomes the planner's constraints.
        hierarchical_row_wise: row-wise tables are summed inside hosts before they cross hosts.
        seed: of stochastic rounding.
        topology: the machines; ``None``: those of the running process group.
        tables: the tables of the model, or none.
    """

    batch_size: f.Count | None = None
    precision: b.PrecisionConfig = b.PrecisionConfig()
    sharding: Annotated[tuple[b.ShardingConfig, ...], BeforeValidator(f.as_tuple)] = ()
    hierarchical_row_wise: bool = False
    seed: int = 0
    topology: b.TopologyConfig | None = None
    tables: Annotated[tuple[b.TableConfig, ...], BeforeValidator(f.as_tuple)] = ()
    _source: str = PrivateAttr("<dict>")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], source: str = "<dict>") -> QCommConfig:
        """Validate plain values.

        Args:
            data: what a YAML file holds.
            source: names the origin in errors.

        Raises:
            ConfigError: lists every problem with its key path, the value, and what is allowed.

        >>> QCommConfig.from_dict({"precision": {"default": {"forward": "int8"}}}).policy.forward.name
        'int8'
        """
        if not isinstance(data, Mapping) or not data:
            allowed = sorted(cls.model_fields)
            wrong = "not a mapping" if data else "empty"
            raise_problems(source, [describe(source, wrong, got=data, allowed=allowed)])
        empty = set(empty_keys(data))
        try:
            config = cls.model_validate(dict(data))
        except ValidationError as error:
            raise_problems(source, [*worded_empty(empty, source), *problems_of(error, source, cls, known=empty)])
            raise  # not reached: a ValidationError has problems
        raise_problems(source, worded_empty(empty, source))
        raise_problems(source, cross_check(source, config.policy, config.sharding, config.tables))
        config._source = source
        return config

    @property
    def source(self) -> str:
        """The file that it came from, for messages."""
        return self._source

    @property
    def policy(self) -> Policy:
        """The policy that ``precision`` spells out."""
        default = self.precision.default
        return Policy(default.forward, default.backward, tuple(rule.build() for rule in self.precision.rules))

    @property
    def pooling_known(self) -> set[str]:
        """Names of the listed tables whose pooling factors ``tables`` or ``sharding`` gives."""
        globs = [entry.tables for entry in self.sharding if entry.pooling_factors]
        return {table.name for table in self.tables if table.pooling or any(matches(table.name, entry) for entry in globs)}


ConfigLike = QCommConfig | str | os.PathLike[str]


def as_config(config: ConfigLike) -> QCommConfig:
    """The config itself, or what the file at a path holds.

    Raises:
        ConfigError: it is neither a config nor a path, or the file is wrong.
    """
    if isinstance(config, QCommConfig):
        return config
    if isinstance(config, (str, os.PathLike)):
        return load_config(config)
    raise ConfigError(describe("config", "not a config", got=config, allowed="a QCommConfig, or the path of a YAML file"))


def load_config(path: str | os.PathLike[str]) -> QCommConfig:
    """Read and validate a config file.

    Args:
        path: a YAML file; docs/reference lists the keys.

    Raises:
        ConfigError: lists every problem of the file, each with its key path, the value, and what is allowed.
    """
    return QCommConfig.from_dict(read_yaml(os.fspath(path)), source=os.fspath(path))
