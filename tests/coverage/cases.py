"""The cells of the table: which collections, shardings, codecs and cases there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec
from torchrec.distributed.types import ParameterSharding
from torchrec.modules.embedding_configs import PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.sharding.scenarios.sequences import sequence_plan
from tests.sharding.scenarios.tables import LOCAL, TableSpec, batch, placed
from tests.sharding.scenarios.variable_batch import ragged
from tests.sharding.test_quantized import MIXED
from torchrec_qcomm.policy import Policy, Rule

WORLD = 4
HOSTS = WORLD // LOCAL

SHARDINGS = {
    "ebc": ("table_wise", "column_wise", "table_column_wise", "row_wise", "table_row_wise", "grid_shard"),
    "ec": ("table_wise", "column_wise", "row_wise"),
}
"""EmbeddingBagCollection and EmbeddingCollection, and the shardings that each has."""

CODECS = {
    "none": Policy(),
    "fp16": Policy("fp16", "fp16"),
    "bf16": Policy("bf16", "bf16"),
    "fp8": Policy("fp8_e4m3", "fp8_e5m2"),
    "int8": Policy("int8", "int8"),
    "int4": Policy("int4", "int4"),
    "mixed": MIXED,
    "per-link": Policy("int4", "int8", rules=(Rule(link="intra_host", forward="bf16", backward="bf16"),)),
}

NATIVE = {"none": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8", "int8": "int8", "int4": "mx4"}
"""The precision of TorchRec's own that comes nearest; it has one for a module, so nothing for the others."""


@dataclass(frozen=True)
class Case:
    """What is special about a batch and its tables.

    Attributes:
        name: the column of the table.
        sizes: samples of each rank; for a variable batch with the distinct rows of each feature.
        dims: of the tables of an EmbeddingBagCollection.
        dim: of all tables of an EmbeddingCollection.
        features: how many each table has.
    """

    name: str
    sizes: tuple[Any, ...] = (8, 8, 8, 8)
    dims: tuple[int, ...] = (64, 32, 64, 32)
    dim: int = 64
    features: tuple[int, ...] = (1, 1, 1, 1)
    weighted: bool = False
    pooling: PoolingType = PoolingType.SUM

    @property
    def variable(self) -> bool:
        """Whether every feature has a batch size of its own."""
        return not isinstance(self.sizes[0], int)

    def tables(self, kind: str) -> tuple[TableSpec, ...]:
        """The tables of a collection of this ``kind``."""
        tables, first = [], 0
        for i, (rows, count) in enumerate(zip((40, 30, 50, 20), self.features, strict=True)):
            names = tuple(f"f{j}" for j in range(first, first + count))
            dim = self.dims[i] if kind == "ebc" else self.dim
            tables.append(TableSpec(f"t{i}", rows, dim, names, self.pooling))
            first += count
        return tuple(tables)

    def features_of(self, kind: str, rank: int) -> KeyedJaggedTensor:
        """The batch of a rank."""
        make = ragged if self.variable else batch
        return make(self.tables(kind), self.sizes[rank], seed=rank, weighted=self.weighted)


CASES = {
    case.name: case
    for case in (
        Case("even"),
        Case("odd", sizes=(7, 7, 7, 7), dims=(20, 36, 52, 28), dim=36),
        Case("uneven", sizes=(8, 8, 8, 5)),
        Case("empty rank", sizes=(8, 0, 8, 8)),
        Case("VBE", sizes=((8, (3, 5, 1, 7)), (9, (6, 1, 2, 4)), (5, (2, 4, 1, 5)), (4, (1, 1, 1, 1)))),
        Case("weighted", weighted=True),
        Case("mean", pooling=PoolingType.MEAN),
        Case("multi-feature", features=(2, 1, 3, 1)),
    )
}

DOES_NOT_EXIST = {
    ("ec", "weighted"): "an EmbeddingCollection does not pool, so there is nothing to weight",
    ("ec", "mean"): "an EmbeddingCollection does not pool, so there is no mean",
}
"""Cells that TorchRec's module itself does not have."""

MAY_BE_REFUSED = {("grid_shard", "mean")}
"""Where a `ShardingError` is a reason, and no fault: TorchRec's result is wrong."""


@dataclass(frozen=True, order=True)
class Cell:
    """The address of one cell."""

    kind: str
    sharding: str
    codec: str
    case: str

    def __str__(self) -> str:
        return f"{self.kind} {self.sharding} {self.codec} {self.case}"


def rows_of_cells() -> Iterator[tuple[str, str, str]]:
    """``(kind, sharding, codec)`` of every row of the tables."""
    for kind, shardings in SHARDINGS.items():
        for sharding in shardings:
            for codec in CODECS:
                yield kind, sharding, codec


def plan_of(kind: str, sharding: str, case: Case) -> dict[str, ParameterSharding]:
    """Where the shards are. All ranks have some."""
    tables = case.tables(kind)
    if kind == "ebc":
        plan = placed(tables, sharding, WORLD)
        if sharding == "table_column_wise":  # the columns of a table on one host, as TorchRec's planner puts them
            for i, t in enumerate(tables):
                widths = [shard.shard_sizes[1] for shard in plan[t.name].sharding_spec.shards]  # type: ignore[union-attr]
                plan[t.name] = _in_columns(sharding, t, widths, [i % HOSTS * LOCAL + j for j in range(LOCAL)])
        return plan
    if sharding != "column_wise" or case.dim % 8 == 0:
        return sequence_plan(tables, sharding, WORLD)
    # FBGEMM wants multiples of four, and TorchRec shards of one width: not halves but thirds.
    widths = [case.dim // 3] * 3
    return {t.name: _in_columns(sharding, t, widths, [(i + j) % WORLD for j in range(3)]) for i, t in enumerate(tables)}


def _in_columns(sharding: str, t: TableSpec, widths: list[int], owners: list[int]) -> ParameterSharding:
    starts = [sum(widths[:j]) for j in range(len(widths))]
    shards = [
        ShardMetadata([0, start], [t.rows, width], f"rank:{owner}/cpu")
        for start, width, owner in zip(starts, widths, owners, strict=True)
    ]
    return ParameterSharding(sharding, "fused", owners, EnumerableShardingSpec(shards))
