"""Situations in which quantized or sharded exchanges elsewhere were reported to fail, each named after what is checked."""

from __future__ import annotations

import pytest
import torch
from torchrec.modules.embedding_configs import PoolingType

from tests.ranks import RankPool
from tests.sharding.scenarios.exchange_alone import Alone, exchange_alone
from tests.sharding.scenarios.faults_of_other_exchanges import (
    codecs_in_force,
    collectives_of_a_step,
    hosts_of_another_size,
    in_a_sub_group,
    no_ids,
    no_sequences_anywhere,
    now_and_then_empty,
    stops_early,
    to_the_next_rank,
)
from tests.sharding.scenarios.reduce_scatter import quantized_step as reduced_step
from tests.sharding.scenarios.sequences import DIM
from tests.sharding.scenarios.tables import LOCAL, TABLES
from tests.sharding.test_traffic import ROW_BYTES
from torchrec_qcomm.errors import ShardingError
from torchrec_qcomm.policy import Policy, Rule
from torchrec_qcomm.sharding import QCommEmbeddingCollectionSharder

LOSSY = ("fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4")
FP8 = ("fp8_e4m3", "fp8_e5m2")


def right(answer: dict) -> bool:
    """Within the bounds, and what was given to the collective are the bytes that were counted, as bytes."""
    sent = [splits for name, dtype, splits in answer["launches"] if (name, dtype) == ("all_to_all_single", "torch.uint8")]
    counted = [answer["counted"]["forward"], answer["counted"]["backward"]]
    assert answer["forward"] <= 1, answer
    assert answer["backward"] <= 1, answer
    assert len(sent) == len(answer["launches"]), answer
    assert sent == counted, answer
    return True


# Shapes.


def test_fp8_of_a_batch_and_dims_that_fit_no_block(ranks: RankPool) -> None:
    """Three samples of dims 64, 48 and 20 on two ranks: no multiple of 32, 128 or 256. No padding, and no setting for it."""
    case = Alone(((("a", 64), ("b", 48)), (("c", 20),)), (3, 3), dict.fromkeys("abc", FP8))
    sent = [3 * (64 + 1 + 48 + 1), 3 * (20 + 1)]
    for rank, answer in enumerate(ranks.run(2, exchange_alone, case)):
        assert right(answer)
        assert answer["shape"] == (3, 132)
        assert answer["differs"]
        assert answer["gradient differs"]
        assert answer["counted"] == {"forward": [sent[rank]] * 2, "backward": sent}


def test_rows_of_unlike_size_in_one_payload_keep_their_own_scale(ranks: RankPool) -> None:
    """Bounds are those of each row: what is 1e-3 in size is not flushed by its neighbour of 1e4."""
    for name in FP8:
        case = Alone(((("a", 128),), (("b", 128),)), (2, 4), {"a": name, "b": name}, row_scales=(1e4, 1e-3))
        for answer in ranks.run(2, exchange_alone, case):
            assert right(answer)


def test_int4_of_an_odd_dim_on_three_ranks_saves_what_it_says(ranks: RankPool) -> None:
    """Five values are three bytes of codes and four of scale and bias, and nothing is shifted by the half byte left over."""
    case = Alone(((("a", 5),), (("b", 5),), ()), (7, 7, 7), {"a": "int4", "b": "int4"})
    for rank, answer in enumerate(ranks.run(3, exchange_alone, case)):
        assert right(answer)
        assert answer["shape"] == (7, 10)
        assert answer["counted"]["forward"] == [0 if rank == 2 else 7 * 7] * 3
        assert answer["counted"]["backward"] == [7 * 7, 7 * 7, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["none", *LOSSY])
def test_a_payload_at_an_odd_place_in_memory(ranks: RankPool, name: str, dtype: torch.dtype) -> None:
    """13 values, one value into their memory; what is before them is NaN. The dtype of the payload is that of the results."""
    case = Alone(((("a", 13),), (("b", 13),)), (1, 0), {"a": name, "b": name}, dtype, odd_offset=True)
    for rank, answer in enumerate(ranks.run(2, exchange_alone, case)):
        assert right(answer)
        assert answer["shape"] == (1 - rank, 26)
        assert answer["dtypes"] == (str(dtype), str(dtype))


@pytest.mark.parametrize("kind", ["table_wise", "column_wise", "table_column_wise", "row_wise", "table_row_wise", "grid_shard"])
def test_a_variable_batch_has_the_codecs_of_a_plain_one(ranks: RankPool, kind: str) -> None:
    policy = Policy("int8", "fp8_e5m2", rules=(Rule(tables="t1", forward="int4"), Rule(link="intra_host", backward="bf16")))
    plain, variable = ranks.run(4, codecs_in_force, kind, policy, env={"LOCAL_WORLD_SIZE": str(LOCAL)})[0]
    assert plain == variable
    assert len(set(plain.values())) > 3


# Nothing to send.


@pytest.mark.parametrize("reduced", [False, True], ids=["moved", "summed"])
@pytest.mark.parametrize("name", ["none", *LOSSY])
def test_a_rank_without_samples(ranks: RankPool, name: str, reduced: bool) -> None:
    owned = ((("a", 20), ("b", 7)),) * 2 if reduced else ((("a", 20),), (("b", 7),))
    first, second = ranks.run(2, exchange_alone, Alone(owned, (0, 4), {"a": name, "b": name}, reduced=reduced))
    assert right(first)
    assert right(second)
    assert (first["shape"], second["shape"]) == ((0, 27), (4, 27))
    assert first["gradient"] == (4, 27 if reduced else 20)
    assert not first["zeros"]  # of the other rank's samples
    assert second["differs"] == (name != "none")


@pytest.mark.parametrize("name", ["none", *LOSSY])
def test_no_rank_has_samples(ranks: RankPool, name: str) -> None:
    for answer in ranks.run(2, exchange_alone, Alone(((("a", 128),), (("b", 128),)), (0, 0), {"a": name, "b": name})):
        assert right(answer)
        assert answer["shape"] == (0, 256)
        assert answer["gradient"] == (0, 128)
        assert len(answer["launches"]) == 2  # a rank that left one out would wait for the others for ever


def test_features_without_ids(ranks: RankPool) -> None:
    width = sum(t.dim * len(t.features) for t in TABLES)
    assert ranks.run(2, no_ids, False, 3) == [((3, width), True, True)] * 2
    assert ranks.run(2, no_ids, True, 3) == [((0, DIM), True, True)] * 2
    assert ranks.run(2, no_ids, False, 0) == [((0, width), True, True)] * 2


def test_sequences_of_no_rank_are_beyond_torchrec_itself(ranks: RankPool) -> None:
    """It reshapes the lengths before anything is exchanged. If this fails, it has learned it, and they belong above."""
    for native, ours in ranks.run(2, no_sequences_anywhere):
        assert "cannot reshape tensor of 0 elements" in native
        assert ours == native


@pytest.mark.parametrize(
    ("kind", "sequences"), [("table_wise", False), ("row_wise", False), ("table_row_wise", False), ("mixed", True)]
)
def test_ranks_are_empty_in_turn_and_stay_together(ranks: RankPool, kind: str, sequences: bool) -> None:
    """Whether a rank has samples or not, it launches the same collectives."""
    answers = ranks.run(4, now_and_then_empty, kind, sequences, 60, env={"LOCAL_WORLD_SIZE": str(LOCAL)})
    width = sum(t.dim * len(t.features) for t in TABLES)
    launched = {pattern for answer in answers for pattern in answer["launched"]}
    assert len(launched) == 1
    for answer in answers:
        assert answer["finite"]
        assert answer["moved"]
        assert answer["shapes"] == (set() if sequences else {(True, width)})


def test_each_rank_sends_to_the_next_only(ranks: RankPool) -> None:
    for rank, answer in enumerate(ranks.run(4, to_the_next_rank)):
        assert answer["ids"] > 0
        assert answer["to"] == [[(rank + 1) % 4], [(rank - 1) % 4]]
        assert answer["equal"]


# Dtypes, and who quantizes.


@pytest.mark.parametrize("name", ["none", *LOSSY])
@pytest.mark.parametrize("reduced", [False, True], ids=["moved", "summed"])
def test_bfloat16_lookups_and_gradients(ranks: RankPool, name: str, reduced: bool) -> None:
    """Gloo sums and moves no BF16 of its own that TorchRec would use; as bytes it goes, and comes back as BF16."""
    owned = ((("a", 20), ("b", 7)),) * 3 if reduced else ((("a", 20),), (("b", 7),), ())
    case = Alone(owned, (5, 2, 4), {"a": name, "b": name}, torch.bfloat16, reduced)
    for rank, answer in enumerate(ranks.run(3, exchange_alone, case)):
        assert right(answer)
        assert answer["dtypes"] == ("torch.bfloat16", "torch.bfloat16")
        if name in ("none", "bf16"):
            assert answer["counted"]["forward"] == [2 * size * sum(dim for _, dim in owned[rank]) for size in (5, 2, 4)]


@pytest.mark.parametrize("name", LOSSY)
def test_a_compressed_buffer_is_as_small_as_it_says(ranks: RankPool, name: str) -> None:
    case = Alone(((("a", 64),), (("b", 31),)), (6, 5), {"a": name, "b": name})
    for rank, answer in enumerate(ranks.run(2, exchange_alone, case)):
        assert right(answer)
        row = [ROW_BYTES[name](dim) for dim in (64, 31)]
        assert answer["counted"] == {"forward": [6 * row[rank], 5 * row[rank]], "backward": [(6, 5)[rank] * n for n in row]}
        assert sum(map(sum, answer["counted"].values())) < 0.6 * answer["fp32"]


def test_torchrecs_own_codecs_are_not_stacked_on_sequences() -> None:
    with pytest.raises(ShardingError, match="twice"):
        QCommEmbeddingCollectionSharder(Policy("int8"), qcomm_codecs_registry={"SEQUENCE_EMBEDDINGS_ALL_TO_ALL": object()})


# Ranks that part.


@pytest.mark.parametrize(
    ("kind", "sequences"),
    [*((kind, False) for kind in ("table_wise", "column_wise", "mixed")), *((k, True) for k in ("table_wise", "mixed"))],
)
def test_no_collective_is_added_to_torchrecs(ranks: RankPool, kind: str, sequences: bool) -> None:
    """So a rank that stops early leaves the others no worse off than without this package."""
    for ours, native in ranks.run(2, collectives_of_a_step, kind, sequences):
        assert ours == native
        assert ours["all_to_all_single"] > 3


@pytest.mark.parametrize("kind", ["row_wise", "table_row_wise"])
def test_a_reduce_scatter_is_one_collective_as_torchrecs_is(ranks: RankPool, kind: str) -> None:
    for ours, native in ranks.run(2, collectives_of_a_step, kind, False, env={"LOCAL_WORLD_SIZE": str(LOCAL)}):
        assert ours.total() == native.total()
        assert ours["all_to_all_single"] == ours.total()


def test_a_rank_that_stops_early_is_missed_in_time(ranks: RankPool) -> None:
    *others, last = ranks.run(3, stops_early)
    assert last == "stopped"
    for said in others:
        assert "imed out" in said, said


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        pytest.param("table_wise", Policy(rules=(Rule(link="inter_host", forward="int4"),)), id="codecs by link"),
        pytest.param("table_row_wise", Policy("int8"), id="table_row_wise"),
        pytest.param("grid_shard", Policy("int8"), id="grid_shard"),
    ],
)
def test_hosts_of_another_size_on_one_rank_are_noticed(ranks: RankPool, kind: str, policy: Policy) -> None:
    for said in ranks.run(4, hosts_of_another_size, kind, policy, env={"LOCAL_WORLD_SIZE": str(LOCAL)}):
        assert said.startswith("DisagreementError: module 'ebc': ranks disagree on "), said
        assert ("devices_per_host" if kind == "table_wise" else "LOCAL_WORLD_SIZE") in said
        assert "has 2" in said
        assert "has 1" in said


def test_hosts_of_another_size_do_not_matter_where_no_host_is_asked_for(ranks: RankPool) -> None:
    said = ranks.run(4, hosts_of_another_size, "table_wise", Policy("int8"), env={"LOCAL_WORLD_SIZE": str(LOCAL)})
    assert said == ["trained"] * 4


@pytest.mark.parametrize("members", [(0, 1), (1, 3)])
@pytest.mark.parametrize("kind", ["table_wise", "mixed_sharded"])
def test_some_ranks_shard_among_themselves(ranks: RankPool, members: tuple[int, int], kind: str) -> None:
    hosts = {"LOCAL_WORLD_SIZE": str(LOCAL)}
    exact = ranks.run(4, in_a_sub_group, members, kind, Policy(), env=hosts)
    across = ranks.run(4, in_a_sub_group, members, kind, Policy(rules=(Rule(link="inter_host", forward="int4"),)), env=hosts)
    one_host = members[0] // LOCAL == members[1] // LOCAL
    for rank in range(4):
        if rank not in members:
            assert exact[rank] is None
            continue
        assert exact[rank]["equal"]
        assert exact[rank]["between"] == {(a, b) for a in members for b in members}
        # The ranks of the group are 0 and 1, whichever they are in the world; their hosts are those of the world.
        assert across[rank]["equal"] == one_host
        assert across[rank]["error"] < 0.1


@pytest.mark.parametrize("kind", ["row_wise", "table_row_wise"])
def test_means_and_sums_in_one_collection_are_divided_after_decoding(ranks: RankPool, kind: str) -> None:
    """Rows dealt out, one table mean-pooled and the others summed: what travels are sums, whose bounds hold once divided."""
    assert {t.pooling for t in TABLES} == {PoolingType.SUM, PoolingType.MEAN}
    hops = {"LOCAL_WORLD_SIZE": "2" if kind == "table_row_wise" else "1"}
    policy = Policy(rules=(Rule(link="inter_host", forward="int8", backward="int8"),))
    for answer in ranks.run(4, reduced_step, kind, (5, 4, 3, 1), policy, False, env=hops):
        assert answer["forward"] <= 1, answer
        assert all(over <= 1 for over in answer["backward"].values()), answer
        assert not answer["forward equal"], answer
