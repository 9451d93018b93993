"""The blocks of a config file, each valid by itself, and what they become."""

from __future__ import annotations

from typing import Annotated, Self

import torch
from pydantic import BeforeValidator, Field, model_validator

from torchrec_qcomm import codecs
from torchrec_qcomm.config import fields as f
from torchrec_qcomm.policy import Rule, Table, Where


class WhereConfig(f.Strict):
    """Bounds on the sizes of a table, inclusive."""

    min_rows: f.Bound | None = None
    max_rows: f.Bound | None = None
    min_dim: f.Bound | None = None
    max_dim: f.Bound | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.build()
        return self

    def build(self) -> Where:
        """As the policy takes it."""
        return Where(self.min_rows, self.max_rows, self.min_dim, self.max_dim)


class RuleConfig(f.Strict):
    """One rule; the first that matches wins, field by field."""

    tables: f.Globs | None = None
    where: WhereConfig | None = None
    link: f.LinkName | None = None
    forward: f.Codec | None = None
    backward: f.Codec | None = None
    allow_unmatched: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.build()
        return self

    def build(self) -> Rule:
        """As the policy takes it."""
        where = self.where.build() if self.where else None
        return Rule(self.tables, where, self.link, self.forward, self.backward, self.allow_unmatched)


class DefaultConfig(f.Strict):
    """The codecs where no rule decides."""

    forward: f.Codec = Field(default_factory=lambda: codecs.spec("none"))
    backward: f.Codec = Field(default_factory=lambda: codecs.spec("none"))


class PrecisionConfig(f.Strict):
    """Which codec each table, direction and link gets."""

    default: DefaultConfig = DefaultConfig()
    rules: Annotated[tuple[RuleConfig, ...], BeforeValidator(f.as_tuple)] = ()


class ShardingConfig(f.Strict):
    """How the planner may shard some tables. The first entry that matches a table wins, field by field."""

    tables: f.Globs
    sharding_types: Annotated[tuple[f.ShardingTypeName, ...], *f.LIST] | None = None
    compute_kernels: Annotated[tuple[f.ComputeKernelName, ...], *f.LIST] | None = None
    min_partition: Annotated[int, Field(ge=4, multiple_of=4)] | None = None
    pooling_factors: f.Rates | None = None
    allow_unmatched: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        constraints = ("sharding_types", "compute_kernels", "min_partition", "pooling_factors")
        if all(getattr(self, name) is None for name in constraints):
            raise f.allowed_error("it constrains nothing", constraints)
        return self


class TopologyConfig(f.Strict):
    """The machines that the file is for. For what is left out, TorchRec's default is taken.

    GB/s are 1e9 bytes a second of a device, one way. GB are 1e9 bytes of a device's memory.
    """

    hosts: f.Count
    devices_per_host: f.Count
    device: f.Device | None = None
    intra_host_gb_per_s: f.Rate | None = None
    inter_host_gb_per_s: f.Rate | None = None
    pod_hosts: f.Count | None = None
    memory_gb: f.Rate | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.pod_hosts is not None and self.pod_hosts > self.hosts:
            raise f.allowed_error(f"pod_hosts is above hosts ({self.pod_hosts} > {self.hosts})", f"at most {self.hosts}")
        return self

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.hosts * self.devices_per_host


class TableConfig(f.Strict):
    """An embedding table, for use with no model at hand."""

    name: f.Name
    rows: f.Count
    dim: f.Count
    features: f.Names | None = None
    pooling: f.Rates | None = None
    dtype: f.Dtype = "fp32"
    collection: f.Collection = "ebc"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.pooling is not None and len(self.pooling) != self.num_features:
            wrong = f"pooling has {len(self.pooling)} values for {self.num_features} features"
            raise f.allowed_error(wrong, "one pooling factor per feature")
        return self

    @property
    def num_features(self) -> int:
        """Features that look into the table: one, if none is named."""
        return len(self.features) if self.features else 1

    @property
    def weight_dtype(self) -> torch.dtype:
        """``dtype`` as torch has it."""
        return f.DTYPES[self.dtype]

    def build(self) -> Table:
        """As the policy looks at it."""
        return Table(self.name, self.rows, self.dim)
