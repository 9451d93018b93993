"""The scenarios of TorchRec's own model-parallel tests on gloo, with our sharders in the place of its own."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from torchrec.modules.embedding_configs import DataType
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from tests.ranks import RankPool
from tests.sharding.scenarios.dlrm import Setting, plan_of
from tests.sharding.scenarios.model_parallel import beside_unsharded, bfloat16, named_like_native
from tests.sharding.scenarios.tables import LOCAL
from torchrec_qcomm.policy import Policy

TYPES = ("data_parallel", "table_wise", "column_wise", "table_column_wise", "row_wise", "table_row_wise", "grid_shard")
SIZES = (8, 7, 5, 1)
HOSTS = {"LOCAL_WORLD_SIZE": str(LOCAL)}
INT8 = Policy("int8", "int8")

SGD = ({"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.5}, partial(torch.optim.SGD, lr=0.5))
ADAGRAD = (
    {"optimizer": EmbOptimType.EXACT_ADAGRAD, "learning_rate": 0.05},
    partial(torch.optim.Adagrad, lr=0.05, eps=1e-8),
)
ROWWISE = (
    {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.05},
    partial(RowWiseAdagrad, lr=0.05, eps=1e-8),
)
"""Its state is a mean over the columns of a shard, so it is the unsharded one's only where rows stay whole."""


def worst(answers: list[dict[str, Any]]) -> dict[str, float]:
    """The largest difference of any rank: of logits, tables and dense weights."""
    sums: dict[str, float] = {"logits": 0.0, "tables": 0.0, "dense": 0.0}
    for answer in answers:
        assert answer["moved"]
        for name, off in answer["off"].items():
            kind = "logits" if name == "logits" else "tables" if name.startswith(("ebc.", "ec.")) else "dense"
            sums[kind] = max(sums[kind], off)
    return sums


def check_ours(answers: list[dict[str, Any]], dtype: str) -> None:
    for answer in answers:
        assert answer["modules"] == ["QCommShardedEmbeddingBagCollection", "QCommShardedEmbeddingCollection"]
        assert answer["dtypes"] == [f"torch.{dtype}"]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_like_one_process(ranks: RankPool, kind: str, optimizer: str) -> None:
    """`none` on the wire, FP32 tables: the same training as unsharded on the global batch, but for the order of sums."""
    whole_rows = kind in ("table_wise", "row_wise", "table_row_wise")
    fused, like = SGD if optimizer == "sgd" else ROWWISE if whole_rows else ADAGRAD
    answers = ranks.run(4, beside_unsharded, Setting(plan_of(kind), True, fused), SIZES, 3, like, env=HOSTS)
    check_ours(answers, "float32")
    off = worst(answers)
    assert off["logits"] < 3e-4  # of logits around 20
    assert off["tables"] < 5e-5
    assert off["dense"] < 5e-5


@pytest.mark.parametrize("kind", TYPES)
def test_sixteen_bit_tables(ranks: RankPool, kind: str) -> None:
    """Apart from the rounding of the weights themselves, which the check takes off."""
    setting = Setting(plan_of(kind), True, SGD[0], data_type=DataType.FP16)
    answers = ranks.run(4, beside_unsharded, setting, SIZES, 3, SGD[1], env=HOSTS)
    check_ours(answers, "float16")
    off = worst(answers)
    assert off["logits"] < 0.05
    assert off["tables"] < 3e-3
    assert off["dense"] < 3e-3


@pytest.mark.parametrize(
    ("kind", "data_type"),
    [
        *((kind, DataType.FP32) for kind in TYPES if kind != "data_parallel"),
        *((kind, DataType.FP16) for kind in ("table_wise", "row_wise")),
    ],
    ids=str,
)
def test_int8_on_the_wire(ranks: RankPool, kind: str, data_type: DataType) -> None:
    """Near, and not equal, which proves that it is in the path."""
    setting = Setting(plan_of(kind), True, SGD[0], INT8, data_type=data_type)
    off = worst(ranks.run(4, beside_unsharded, setting, SIZES, 3, SGD[1], env=HOSTS))
    assert 0.06 < off["logits"] < 1.0
    assert 1e-3 < off["tables"] < 0.2
    assert 1e-3 < off["dense"] < 0.2


@pytest.mark.parametrize("meta", [False, True], ids=["cpu", "meta"])
@pytest.mark.parametrize("kind", ["mixed", "mixed hosts", "grid_shard"])
def test_names_shapes_and_dtypes_are_torchrecs(ranks: RankPool, kind: str, meta: bool) -> None:
    """State dict, parameters, buffers, fused and dense optimizer; also of a model that was made without weights."""
    fused = {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.1}
    for answer in ranks.run(4, named_like_native, Setting(plan_of(kind), True, fused, INT8), meta, env=HOSTS):
        assert answer.pop("some") > 10
        assert all(answer.values()), answer


@pytest.mark.parametrize("how", [{"data_type": DataType.BF16}, {"output_dtype": SparseType.BF16}], ids=["tables", "output"])
def test_bfloat16_lookups_do_not_exist_on_cpu(ranks: RankPool, how: dict[str, Any]) -> None:
    """FBGEMM looks up no BF16 on CPU, whoever shards. If this fails, it has learned it: test BF16 like FP16 then.

    The exchange itself carries BF16: see `test_faults_of_other_exchanges`.
    """
    for native, ours in ranks.run(2, bfloat16, how):
        assert "not implemented for 'BFloat16'" in native
        assert ours == native
