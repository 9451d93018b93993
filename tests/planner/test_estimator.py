"""What an exchange costs by the bytes of each table and link, and what TorchRec's planner chooses with that."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.types import ShardingType

import torchrec_qcomm as qc
from tests.planner.planned import placed_options, sent
from tests.ranks import RankPool
from tests.sharding.scenarios.tables import TableSpec
from torchrec_qcomm.planner import (
    ListedTable,
    PlannerInputs,
    WireAwareEstimator,
    build_topology,
    model_of,
    model_tables,
    plan_options,
    wire_aware_enumerator,
)
from torchrec_qcomm.policy import Policy, Rule, Table

INTRA, INTER = 4.0, 1.0  # GB/s
BATCH = 8
PER_LINK = Policy("int4", "int8", rules=(Rule(link="intra_host", forward="none", backward="fp16"),))
"""A row of 64 values: forward 256 bytes inside a host and 36 across, backward 128 and 72."""


def listed(name: str = "t", rows: int = 100, dim: int = 64, pooled: bool = True, features: tuple[str, ...] = ()) -> ListedTable:
    return ListedTable(Table(name, rows, dim), features, pooled=pooled)


def costs(
    tables: list[ListedTable],
    policy: Policy = PER_LINK,
    *,
    hosts: int = 2,
    local: int = 2,
    pod_hosts: int | None = None,
    constraints: dict[str, ParameterConstraints] | None = None,
    model: nn.Module | None = None,
    native: bool = False,
    **arguments: object,
) -> dict[tuple[str, str], list]:
    """The perf of every shard, by table and sharding type."""
    topology = build_topology(hosts * local, local, "cuda", INTRA, INTER, pod_hosts)
    model = model_of(tables) if model is None else model
    kinds = {"sharding_types": [kind.value for kind in ShardingType], "min_partition": 32}
    given = {t.table.name: ParameterConstraints(**kinds) for t in tables} if constraints is None else constraints
    estimator = WireAwareEstimator(policy, model_tables(model), **arguments)
    enumerator = wire_aware_enumerator(estimator, topology, BATCH, given)
    if native:
        enumerator = EmbeddingEnumerator(topology, BATCH, given)
    found = enumerator.enumerate(model, qc.get_sharders(policy))
    return {
        (option.name, option.sharding_type): [shard.perf for shard in option.shards]
        for option in found
        if option.compute_kernel in ("fused", "dense")
    }


def ms(inside: float, across: float) -> float:
    """Both links at once; bytes in."""
    return max(inside / (INTRA * 1e6), across / (INTER * 1e6))


def test_each_link_has_its_bytes_and_its_rate():
    """2 hosts of 2. An owner sends 8 rows to one rank on its host and 8 to each of two across; each hop of table-row-wise:
    8 rows for each of two hosts to the other rank, then 8 rows to the rank across."""
    got = costs([listed()])
    one_hop = {"forward": ms(8 * 256, 2 * 8 * 36), "backward": ms(8 * 128, 2 * 8 * 72)}
    two_hops = {"forward": ms(2 * 8 * 256, 0) + ms(0, 8 * 36), "backward": ms(2 * 8 * 128, 0) + ms(0, 8 * 72)}
    for kind, expected, shards in (
        ("table_wise", one_hop, 1),
        ("row_wise", one_hop, 4),
        ("table_row_wise", two_hops, 2),
    ):
        perfs = got["t", kind]
        assert len(perfs) == shards
        assert [perf.fwd_comms for perf in perfs] == pytest.approx([expected["forward"]] * shards)
        assert [perf.bwd_comms for perf in perfs] == pytest.approx([expected["backward"]] * shards)
    # Half the columns are not half the bytes: int4 has 4 bytes for each row.
    halves = got["t", "column_wise"]
    assert [perf.fwd_comms for perf in halves] == pytest.approx([ms(8 * 128, 2 * 8 * 20)] * 2)
    grid = got["t", "grid_shard"]
    assert [perf.fwd_comms for perf in grid] == pytest.approx([ms(2 * 8 * 128, 0) + ms(0, 8 * 20)] * 4)


def test_row_wise_in_two_hops():
    """8 rows for each host to the other rank, then 8 rows to the rank across."""
    perfs = costs([listed()], hierarchical_row_wise=True)["t", "row_wise"]
    assert [perf.fwd_comms for perf in perfs] == pytest.approx([ms(2 * 8 * 256, 0) + ms(0, 8 * 36)] * 4)


def test_sequences_send_a_row_for_every_id():
    constraints = {"s": ParameterConstraints(sharding_types=["table_wise", "row_wise"], pooling_factors=[5.0])}
    got = costs([listed("s", pooled=False)], constraints=constraints)
    assert got["s", "table_wise"][0].fwd_comms == pytest.approx(5 * ms(8 * 256, 2 * 8 * 36))
    # By rows, every rank has a quarter of the ids.
    assert [perf.fwd_comms for perf in got["s", "row_wise"]] == pytest.approx([5 / 4 * ms(8 * 256, 2 * 8 * 36)] * 4)


def test_hosts_of_a_pod_have_the_fast_link_and_the_codec_of_hosts():
    """4 hosts of 2, two a pod: an owner sends to 1 rank on its host, 2 in its pod, 4 beyond."""
    inside, across = 8 * 256 + 2 * 8 * 36, 4 * 8 * 36
    assert costs([listed()], hosts=4, pod_hosts=2)["t", "table_wise"][0].fwd_comms == pytest.approx(ms(inside, across))
    # Rows lie on the 4 ranks of a pod: 8 rows for each pod to 1 on the host and 2 others, then 8 to the rank of the other pod.
    two_hops = ms(2 * (8 * 256 + 2 * 8 * 36), 0) + ms(0, 8 * 36)
    perfs = costs([listed()], hosts=4, pod_hosts=2)["t", "table_row_wise"]
    assert [perf.fwd_comms for perf in perfs] == pytest.approx([two_hops] * 4)
    rows = costs([listed()], hosts=4, pod_hosts=2, hierarchical_row_wise=True)["t", "row_wise"]
    assert rows[0].fwd_comms == pytest.approx(ms(4 * 8 * 256, 0) + ms(8 * 36, 2 * 8 * 36))


def test_one_rank_exchanges_nothing():
    got = costs([listed()], hosts=1, local=1)
    assert got["t", "table_wise"][0].fwd_comms == got["t", "table_wise"][0].bwd_comms == 0.0


def test_every_feature_counts():
    """TorchRec counts one feature where no pooling factors are given."""
    one, two = (costs([listed(features=names)], constraints={})["t", "table_wise"][0] for names in (("a",), ("a", "b")))
    assert two.fwd_comms == pytest.approx(2 * one.fwd_comms)
    given = {"t": ParameterConstraints(pooling_factors=[1.0, 1.0], batch_sizes=[8, 4], num_poolings=[1.0, 3.0])}
    some = costs([listed(features=("a", "b"))], constraints=given)["t", "table_wise"][0]
    assert some.fwd_comms == pytest.approx((1 + 3 * 4 / 8) * one.fwd_comms)


def test_what_travels_once_is_counted(monkeypatch):
    """A range that the rows of a table share: once for each pair of ranks, whatever the rows."""
    monkeypatch.setattr(type(qc.codecs.get("int4")), "range_header_bytes", 1000)
    got = costs([listed()], Policy("int4"))["t", "table_wise"][0].fwd_comms
    assert got == pytest.approx(ms(0, 2 * (8 * 36 + 1000)))


def test_coding_takes_time_where_it_is_given():
    """8 rows of 256 bytes as FP32 to each of two ranks across, int4: encoded at 2 GB/s, gradients decoded (int8) at 1."""
    speeds = {"int4": (2.0, 0.5), "int8": (4.0, 1.0)}
    plain, coded = costs([listed()]), costs([listed()], codec_speeds=speeds)
    values = 2 * 8 * 256
    (before,), (after,) = plain["t", "table_wise"], coded["t", "table_wise"]
    assert after.fwd_comms - before.fwd_comms == pytest.approx(values / 2e6)
    assert after.bwd_comms - before.bwd_comms == pytest.approx(values / 1e6)
    # Summed at the receiver, what comes is decoded there: as many rows as go out.
    before, after = plain["t", "row_wise"][0], coded["t", "row_wise"][0]
    assert after.fwd_comms - before.fwd_comms == pytest.approx(values / 2e6 + values / 0.5e6)


def test_what_kernels_compute_stays_torchrecs():
    ours, native = costs([listed()]), costs([listed()], native=True)
    assert ours.keys() == native.keys()
    for option, perfs in native.items():
        for mine, theirs in zip(ours[option], perfs, strict=True):
            assert (mine.fwd_compute, mine.bwd_compute) == (theirs.fwd_compute, theirs.bwd_compute)
            assert mine.input_dist_comms == theirs.input_dist_comms
            exchanged = option[1] != "data_parallel"
            assert (mine.fwd_comms != theirs.fwd_comms) == exchanged
    replicated = "t", "data_parallel"
    assert [perf.bwd_comms for perf in ours[replicated]] == [perf.bwd_comms for perf in native[replicated]]


def test_tables_are_told_apart_by_their_sizes():
    """Two modules share a name; a rule gives the small one another codec. The third is TorchRec's to exchange."""

    def bags(rows: int, name: str = "t") -> EmbeddingBagCollection:
        tables = [EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=64, feature_names=["a"])]
        return EmbeddingBagCollection(tables=tables, device=torch.device("meta"))

    policy = Policy("int4", "int4", rules=(Rule(where=qc.Where(max_rows=10), forward="none", backward="none"),))
    model = nn.ModuleDict({"big": bags(100), "small": bags(10), "other": bags(100, "u")})
    topology = build_topology(4, 1, "cuda", INTRA, INTER)
    estimator = WireAwareEstimator(policy, model_tables(model), untouched=["u"])
    options = wire_aware_enumerator(estimator, topology, BATCH).enumerate(model, qc.get_sharders(policy))
    got = {option.path: option.shards[0].perf.fwd_comms for option in options if option.sharding_type == "table_wise"}
    assert got == pytest.approx({"big": ms(0, 3 * 8 * 36), "small": ms(0, 3 * 8 * 256), "other": ms(0, 3 * 8 * 256)})


def test_options_come_in_one_order():
    """TorchRec's order is that of a set, another one in every process; plans would be, too, where costs are the same."""
    model, kinds = model_of([listed("a"), listed("b")]), [kind.value for kind in ShardingType]
    topology = build_topology(4, 2, "cuda")
    enumerator = wire_aware_enumerator(WireAwareEstimator(Policy(), model_tables(model)), topology, BATCH)
    options = enumerator.enumerate(model, qc.get_sharders())
    tables = [option.name for option in options]
    assert tables == sorted(tables, key=tables.index)
    for name in set(tables):
        order = [(kinds.index(o.sharding_type), o.compute_kernel) for o in options if o.name == name]
        assert order == sorted(order)
        assert len({kind for kind, _ in order}) > 4


def test_get_planner_takes_these_costs():
    yaml = {
        "batch_size": BATCH,
        "precision": {"default": {"forward": "int4"}, "rules": [{"link": "intra_host", "forward": "none"}]},
        "topology": {"hosts": 2, "devices_per_host": 2, "device": "cuda", "intra_host_gb_per_s": 4, "inter_host_gb_per_s": 1},
    }
    model = model_of([listed()])
    planner = qc.get_planner(qc.QCommConfig.from_dict(yaml), model)
    options = planner._enumerator.enumerate(model, qc.get_sharders(qc.Policy()))
    (option,) = (o for o in options if (o.sharding_type, o.compute_kernel) == ("table_wise", "fused"))
    assert option.shards[0].perf.fwd_comms == pytest.approx(ms(8 * 256, 2 * 8 * 36))
    own = EmbeddingEnumerator(planner._topology, BATCH)
    assert qc.get_planner(qc.QCommConfig.from_dict(yaml), model, enumerator=own)._enumerator is own


# ---- what is chosen, and what it sends


def chosen(
    tables: list[ListedTable], policy: Policy, kinds: list[str], native: bool, size: int = BATCH
) -> tuple[list, dict[int, float]]:
    """A plan for 2 hosts of 2, and what it takes the exchange of each rank to cost: forward and backward, ms."""
    topology, model = build_topology(4, 2, "cuda", INTRA, INTER), model_of(tables)
    constraints = {t.table.name: ParameterConstraints(sharding_types=kinds) for t in tables}
    if native:
        enumerator = EmbeddingEnumerator(topology, size, constraints)
    else:
        estimator = WireAwareEstimator(policy, model_tables(model))
        enumerator = wire_aware_enumerator(estimator, topology, size, constraints)
    options = plan_options(model, PlannerInputs(topology, size, qc.get_sharders(policy), constraints), enumerator=enumerator)
    cost = dict.fromkeys(range(4), 0.0)
    for option in options:
        for shard in option.shards:
            cost[shard.rank] += shard.perf.fwd_comms + shard.perf.bwd_comms
    return placed_options(options), cost


def measured(ranks: RankPool, tables: list[ListedTable], plan: list, policy: Policy, size: int = BATCH) -> dict:
    specs = [TableSpec(t.table.name, t.table.rows, t.table.dim, (t.table.name,)) for t in tables]
    return ranks.run(4, sent, specs, plan, policy, size, env={"LOCAL_WORLD_SIZE": "2"})[0]


def of_rank(matrix: list[list[int]], rank: int) -> tuple[int, int]:
    """Bytes that a rank sends inside its host, less those to itself, and across."""
    host = rank // 2
    inside = sum(matrix[rank][to] for to in (2 * host, 2 * host + 1) if to != rank)
    return inside, sum(matrix[rank]) - inside


def slowest(matrices: dict, hops: int) -> float:
    """Milliseconds of the exchange forward and backward at the rank with most to send or receive, by the bytes counted."""
    total = 0.0
    for matrix in matrices.values():
        turned = [list(row) for row in zip(*matrix, strict=True)]
        times = []
        for each in (matrix, turned):
            for rank in range(4):
                inside, across = of_rank(each, rank)
                times.append(ms(inside, across) if hops == 1 else ms(inside, 0) + ms(0, across))
        total += max(times)
    return total


def test_the_planner_takes_what_is_faster_by_the_bytes_counted(ranks: RankPool) -> None:
    """Two tables, whole or by rows inside a host. To TorchRec all bytes of a whole table cross hosts as FP32, so it deals the
    rows out. With 4 bits across hosts, the hop inside them takes longer than all the rest."""
    policy = Policy("int4", "int4", rules=(Rule(link="intra_host", forward="none", backward="none"),))
    tables, kinds = [listed("t", 200), listed("u", 200)], ["table_wise", "table_row_wise"]
    plans = {native: chosen(tables, policy, kinds, native) for native in (True, False)}
    assert {kind for _, kind, _ in plans[True][0]} == {"table_row_wise"}
    assert {kind for _, kind, _ in plans[False][0]} == {"table_wise"}
    theirs, ours = (measured(ranks, tables, plans[native][0], policy) for native in (True, False))
    assert slowest(theirs, hops=2) > 2 * slowest(ours, hops=1)
    everything = [
        sum(sum(map(sum, matrix)) - sum(matrix[r][r] for r in range(4)) for matrix in m.values()) for m in (theirs, ours)
    ]
    assert everything[0] > 2 * everything[1]
    # What was expected of a rank is what its bytes come to.
    assert slowest(ours, hops=1) == pytest.approx(max(plans[False][1].values()))


def test_the_planner_evens_out_the_bytes_counted(ranks: RankPool) -> None:
    """Two tables of 128 in 4 bits, four of 64 as they are: of the same width to TorchRec, which gives each of the wide ones a
    rank, and two of the others together another. A row of those takes 256 bytes, one of the wide ones 68."""
    tables = [listed("a0", dim=128), listed("a1", dim=128), *(listed(f"b{i}") for i in range(4))]
    policy = Policy(rules=(Rule(tables="a*", forward="int4", backward="int4"),))
    plans = {native: chosen(tables, policy, ["table_wise"], native) for native in (True, False)}
    theirs, ours = (measured(ranks, tables, plans[native][0], policy) for native in (True, False))
    most = [max(sum(of_rank(m["forward"], rank)) for rank in range(4)) for m in (theirs, ours)]
    assert most == [3 * BATCH * 2 * 256, 3 * BATCH * (256 + 68)]
    assert slowest(ours, hops=1) == pytest.approx(max(plans[False][1].values()))


@pytest.mark.parametrize("kind", ["column_wise", "row_wise", "grid_shard"])
def test_costs_are_those_of_the_bytes_counted(ranks: RankPool, kind: str) -> None:
    tables = [listed("t", 200, 64)]
    plan, cost = chosen(tables, PER_LINK, [kind], native=False)
    assert slowest(measured(ranks, tables, plan, PER_LINK), hops=2 if kind == "grid_shard" else 1) == pytest.approx(
        max(cost.values())
    )
