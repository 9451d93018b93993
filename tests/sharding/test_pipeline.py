"""TrainPipelineSparseDist with quantized exchanges: what it trains is what training without it trains, bit for bit."""

from __future__ import annotations

import pytest
from fbgemm_gpu.split_embedding_configs import EmbOptimType

from tests.ranks import RankPool
from tests.sharding.scenarios.dlrm import Setting
from tests.sharding.scenarios.pipeline import beside_plain
from tests.sharding.scenarios.tables import LOCAL
from torchrec_qcomm.policy import Policy, Rule

KINDS = {
    "t0": "table_wise",
    "t1": "row_wise",
    "t2": "column_wise",
    "t3": "table_row_wise",
    "s0": "table_wise",
    "s1": "row_wise",
}
FUSED = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.5}
SIZES = ((6, 6, 6, 6), (6, 6, 6, 6), (6, 6, 6, 6), (6, 4, 3, 1))
"""Four steps; the last batch is what is left, and not the same on all ranks."""

MIXED = Policy("int8", "int8", rules=(Rule(tables="?0", forward="int4"), Rule(link="intra_host", forward="bf16")))


CASES = [
    pytest.param(("bags", "sequences"), Policy(), id="none"),
    pytest.param(("bags", "sequences"), MIXED, id="mixed"),
    pytest.param(("bags",), Policy(), id="bags-none"),
    pytest.param(("bags",), MIXED, id="bags-mixed"),
    pytest.param(("sequences",), Policy(), id="sequences-none"),
    pytest.param(("sequences",), MIXED, id="sequences-mixed"),
]


@pytest.mark.parametrize(("collections", "policy"), CASES)
def test_pipelined_like_plain(ranks: RankPool, collections: tuple[str, ...], policy: Policy) -> None:
    setting = Setting(KINDS, True, FUSED, policy, collections)
    answers = ranks.run(4, beside_plain, setting, SIZES, env={"LOCAL_WORLD_SIZE": str(LOCAL)})
    for rank, answer in enumerate(answers):
        assert answer["sizes"] == [step[rank] for step in SIZES]
        assert answer["logits"], rank
        assert answer["state"], rank
        assert answer["moved"], rank
        if len(collections) > 1:
            continue
        if policy == MIXED:
            assert answer["native logits"] > 1e-2
        elif collections == ("sequences",):  # which are only moved
            assert answer["native logits"] == answer["native state"] == 0.0
        else:  # the order of a sum over ranks is another one
            assert answer["native logits"] < 3e-4
            assert answer["native state"] < 1e-5
