"""torch.compile of models whose exchange is quantized."""

from __future__ import annotations

from fbgemm_gpu.split_embedding_configs import EmbOptimType

from tests.ranks import RankPool
from tests.sharding.scenarios.compiled import beside_eager
from tests.sharding.scenarios.dlrm import Setting, plan_of
from torchrec_qcomm.policy import Policy

FUSED = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.5}
INT8 = Policy("int8", "int8")
HOSTS = {"LOCAL_WORLD_SIZE": "2"}


def test_the_dense_part_is_compiled_without_graph_breaks(ranks: RankPool) -> None:
    for answer in ranks.run(2, beside_eager, Setting(plan_of("mixed hosts"), True, FUSED, INT8), False, 3, env=HOSTS):
        assert answer["graphs"] == 1
        assert answer["breaks"] == {}
        assert answer["frames of TorchRec"] == 0
        assert answer["logits"]
        assert answer["state"]


def test_the_compiler_stays_out_of_the_exchange(ranks: RankPool) -> None:
    """TorchRec's own modules break the graph on CPU, whoever exchanges; of this package no frame is to be added to that."""
    setting = Setting(plan_of("table_wise"), True, FUSED, INT8)
    for answer in ranks.run(2, beside_eager, setting, True, 1, env=HOSTS, seconds=300):
        assert answer["frames of the package"] == []
        assert answer["frames of TorchRec"] > 10
        assert answer["logits"]
        assert answer["state"]
