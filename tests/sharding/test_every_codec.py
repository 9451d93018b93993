"""Every codec works in the exchange of every sharding, and of sequences: within its bound, and not equal to FP32."""

from __future__ import annotations

import pytest

from tests.ranks import RankPool
from tests.sharding.scenarios.pooled_collections import quantized_step
from tests.sharding.scenarios.reduce_scatter import quantized_step as reduced_step
from tests.sharding.scenarios.sequences import quantized_sequences
from tests.sharding.scenarios.tables import LOCAL
from torchrec_qcomm import codecs
from torchrec_qcomm.codecs import CodecLike
from torchrec_qcomm.policy import Policy, Rule

LIKES: list[CodecLike] = [
    *(name for name in codecs.names() if name not in ("none", "fp32")),
    *({"codec": name, "rounding": "stochastic"} for name in ("int8", "fp8_e4m3", "mxfp4")),
    {"codec": "natural", "bits": 4},
    {"codec": "qsgd", "bits": 2, "norm": "max"},
    {"codec": "int4", "range": {"percentile": 90}},
    {"codec": "int8", "range": {"static": [-3, 3]}, "rounding": "stochastic"},
    {"codec": "int4", "range": {"static": [-3, 3]}},
]
SIZES = (5, 4, 3, 1)


@pytest.mark.parametrize("like", LIKES, ids=lambda like: str(codecs.spec(like)))
def test_whole_vectors(ranks: RankPool, like: CodecLike) -> None:
    for kind in ("table_wise", "column_wise", "table_column_wise"):
        for answer in ranks.run(2, quantized_step, kind, SIZES[:2], Policy(like, like)):
            assert answer["finite"], (kind, answer)
            assert answer["forward over bound"] <= 1, (kind, answer)
            assert all(over <= 1 for over in answer["backward over bound"].values()), (kind, answer)
            assert not any(answer["forward equal"].values()), (kind, answer)
            assert not any(answer["backward equal"].values()), (kind, answer)


@pytest.mark.parametrize("like", LIKES, ids=lambda like: str(codecs.spec(like)))
def test_sums(ranks: RankPool, like: CodecLike) -> None:
    """In two hops, one of them at a time: the bound of the second would be that of what the first makes of the values."""
    own = Rule(link="self", forward="none", backward="none")  # which has the codec of the host otherwise, in both hops
    hops = [Policy(rules=(own, Rule(link=link, forward=like, backward=like))) for link in ("intra_host", "inter_host")]
    cases = [("row_wise", Policy(like, like), "1")]
    cases += [(kind, policy, str(LOCAL)) for kind in ("table_row_wise", "grid_shard") for policy in hops]
    for kind, policy, local in cases:
        for answer in ranks.run(4, reduced_step, kind, SIZES, policy, True, env={"LOCAL_WORLD_SIZE": local}):
            assert answer["forward"] <= 1, (kind, answer)
            assert all(over <= 1 for over in answer["backward"].values()), (kind, answer)
            assert not answer["forward equal"], (kind, answer)
            # With one hop exact, some rows get their gradients by that alone.
            assert not all(answer["backward equal"].values()), (kind, answer)
            assert kind != "row_wise" or not any(answer["backward equal"].values()), (kind, answer)


@pytest.mark.parametrize("like", LIKES, ids=lambda like: str(codecs.spec(like)))
def test_sequences(ranks: RankPool, like: CodecLike) -> None:
    for answer in ranks.run(3, quantized_sequences, "mixed", SIZES[:3], Policy(like, like), env={"LOCAL_WORLD_SIZE": "1"}):
        assert answer["forward over bound"] <= 1, answer
        assert all(over <= 1 for over in answer["backward over bound"].values()), answer
        assert not answer["forward equal"], answer
        assert not any(answer["backward equal"].values()), answer
