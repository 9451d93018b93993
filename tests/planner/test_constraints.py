"""Globs of `sharding` become constraints by exact table name."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig

from torchrec_qcomm.errors import PolicyError
from torchrec_qcomm.planner import Constraint, build_constraints, model_tables
from torchrec_qcomm.policy import Table


class Model(nn.Module):
    """A bag collection two levels down, and a sequence collection."""

    def __init__(self) -> None:
        super().__init__()
        meta = torch.device("meta")
        bags = [
            EmbeddingBagConfig(name="t_a", num_embeddings=100, embedding_dim=32, feature_names=["a", "b"]),
            EmbeddingBagConfig(name="t_b", num_embeddings=200, embedding_dim=64, feature_names=["c"]),
        ]
        self.sparse = nn.ModuleDict({"bags": EmbeddingBagCollection(tables=bags, device=meta)})
        ids = [EmbeddingConfig(name="s", num_embeddings=50, embedding_dim=16, feature_names=["d"])]
        self.sequence = EmbeddingCollection(tables=ids, device=meta)
        self.dense = nn.Linear(2, 2)


TABLES = model_tables(Model())


def test_tables_are_found_in_all_collections():
    assert [(entry.table, entry.features, entry.module) for entry in TABLES] == [
        (Table("t_a", 100, 32), ("a", "b"), "sparse.bags"),
        (Table("t_b", 200, 64), ("c",), "sparse.bags"),
        (Table("s", 50, 16), ("d",), "sequence"),
    ]
    assert model_tables(nn.Linear(2, 2)) == ()


def test_first_match_wins_field_by_field():
    got = build_constraints(
        [
            Constraint(("t_a",), sharding_types=("column_wise",), pooling_factors=(3.0, 2.0)),
            Constraint(("t_*",), sharding_types=("table_wise", "column_wise"), min_partition=16, compute_kernels=("fused",)),
        ],
        TABLES,
    )
    assert set(got) == {"t_a", "t_b"}  # nothing is said about s
    assert (got["t_a"].sharding_types, got["t_a"].min_partition) == (["column_wise"], 16)
    assert (got["t_b"].sharding_types, got["t_b"].compute_kernels) == (["table_wise", "column_wise"], ["fused"])
    assert got["t_a"].pooling_factors == [3.0, 2.0]


def test_pooling_factors_are_one_per_feature():
    got = build_constraints([Constraint(("t_*",), min_partition=16)], TABLES, pooling={"t_b": (7.0,), "s": (5.0,)})
    assert {name: entry.pooling_factors for name, entry in got.items()} == {"t_a": [1.0, 1.0], "t_b": [7.0], "s": [5.0]}
    with pytest.raises(PolicyError, match="'t_a': 1 pooling factors for 2 features"):
        build_constraints([Constraint(("t_*",), pooling_factors=(2.0,))], TABLES)


def test_unmatched_globs_are_refused_all_at_once():
    constraints = [
        Constraint(("t_a", "t_aa"), min_partition=4),
        Constraint(("x",), min_partition=4, allow_unmatched=True),
        Constraint(("y",), min_partition=4),
    ]
    with pytest.raises(PolicyError) as caught:
        build_constraints(constraints, TABLES, where="f.yaml: sharding")
    first, second = str(caught.value).splitlines()
    assert first.startswith(
        "f.yaml: sharding.0.tables: matches no table; got 't_aa'; allowed: s, t_a, t_b. Did you mean 't_a'?"
    )
    assert second.startswith("f.yaml: sharding.2.tables: matches no table; got 'y'")
