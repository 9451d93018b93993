"""Checkpoints are TorchRec's own: saved with the plugin and loaded without it, and the reverse, optimizer state included."""

from __future__ import annotations

from pathlib import Path

import pytest
from fbgemm_gpu.split_embedding_configs import EmbOptimType

from tests.ranks import RankPool
from tests.sharding.scenarios.checkpoints import there_and_back, unequal_columns
from tests.sharding.scenarios.dlrm import Setting, plan_of
from tests.sharding.scenarios.tables import LOCAL
from torchrec_qcomm.policy import Policy

ROWWISE = {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.1}
ADAGRAD = {"optimizer": EmbOptimType.EXACT_ADAGRAD, "learning_rate": 0.1}
"""With SGD all that FBGEMM's lookups can do on CPU; the dense part and data-parallel tables have Adam."""

TYPES = ("data_parallel", "table_wise", "column_wise", "table_column_wise", "row_wise", "table_row_wise", "grid_shard")
PLANS = (*TYPES, "mixed", "mixed hosts")
INT8 = Policy("int8", "int8")

CASES = [
    *(pytest.param(plan, True, ROWWISE, Policy(), id=f"{plan}-ours-native-ours") for plan in PLANS),
    # What TorchRec's own has trained; that ours loads what it has saved is in the above.
    *(pytest.param(plan, False, ROWWISE, Policy(), id=f"{plan}-native-ours-native") for plan in ("mixed", "mixed hosts")),
    *(pytest.param(plan, True, ADAGRAD, INT8, id=f"{plan}-int8-adagrad") for plan in ("mixed", "mixed hosts")),
]


@pytest.mark.parametrize(("plan", "quantized", "fused", "policy"), CASES)
def test_there_and_back(
    ranks: RankPool, tmp_path: Path, plan: str, quantized: bool, fused: dict[str, object], policy: Policy
) -> None:
    kinds = plan_of(plan)
    setting = Setting(kinds, quantized, fused, policy)
    answers = ranks.run(4, there_and_back, setting, str(tmp_path), env={"LOCAL_WORLD_SIZE": str(LOCAL)})
    for rank, answer in enumerate(answers):
        for what in ("keys", "trained", "differed", "crossed", "back", "trains on", "moved on"):
            assert answer[what], (rank, what)
        # A sum over four ranks has another order in TorchRec's own reduce-scatter.
        if policy == Policy() and "row_wise" not in kinds.values():
            assert answer["foreign trains on alike"], rank
        elif policy == Policy():
            assert answer["foreign error"] < 1e-4, rank
        assert answer["dense states"]
    held = [name for answer in answers for name in answer["table states"]]
    for table, kind in kinds.items():
        assert any(f"/{table}." in name for name in held) == (kind != "data_parallel"), table


@pytest.mark.parametrize("kind", ["column_wise", "table_column_wise", "grid_shard"])
def test_columns_of_unequal_width_cannot_be_loaded_by_torchrec_itself(ranks: RankPool, kind: str) -> None:
    """TorchRec gives all shards of a table the width of the first one when it loads. Its planner makes them equal; plans
    made by hand may not. If this fails, TorchRec has learned it, and the case belongs above."""
    for native, ours in ranks.run(4, unequal_columns, kind, env={"LOCAL_WORLD_SIZE": str(LOCAL)}):
        assert "size mismatch" in native
        assert ours == native
