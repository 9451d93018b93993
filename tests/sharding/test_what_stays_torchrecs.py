"""What stays TorchRec's own with quantized output dists in place, beyond a plain training step."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import SparseType
from torchrec.distributed import comm_ops
from torchrec.distributed.embedding_sharding import EmbeddingShardingContext
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import ShardingEnv

from tests.ranks import RankPool
from tests.sharding.scenarios.hops import hop
from tests.sharding.scenarios.pooled_collections import shard, step
from tests.sharding.scenarios.tables import SGD, TABLES, batch, collection, local_weights, placed, upstream
from torchrec_qcomm import codecs
from torchrec_qcomm.collectives import Launch, Observers
from torchrec_qcomm.errors import WireError
from torchrec_qcomm.policy import Policy, Rule, Table
from torchrec_qcomm.sharding import QCommEmbeddingBagCollectionSharder, measure_traffic
from torchrec_qcomm.sharding.dists.pooled import QCommPooledEmbeddingDist
from torchrec_qcomm.sharding.precision import TableCodecs
from torchrec_qcomm.sharding.traffic import TrafficMeter
from torchrec_qcomm.wire import Cell, Column, Side

INT8 = Policy("int8", "int8")


def pair(policy: Policy, world: int, **fused: Any) -> tuple[Any, Any]:
    """Ours under a policy and TorchRec's own, with the same plan and weights."""
    plan = placed(TABLES, "table_wise", world)
    fused = {**SGD, **fused}
    ours = shard(QCommEmbeddingBagCollectionSharder(policy, fused_params=fused), collection(), plan)
    return ours, shard(EmbeddingBagCollectionSharder(fused_params=fused), collection(), plan)


def same_weights(a: Any, b: Any) -> bool:
    left, right = local_weights(a), local_weights(b)
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


def two_in_flight(rank: int, world: int) -> dict[str, bool]:
    """Two forwards before either is waited for, one backward through both."""
    ours, native = pair(Policy(), world)
    first, second = batch(TABLES, 4, seed=rank), batch(TABLES, 6, seed=10 + rank)
    results = []
    for sharded in (ours, native):
        a, b = sharded(first), sharded(second)
        late, early = b.values(), a.values()
        ((early * upstream(*early.shape, seed=1)).sum() + (late * upstream(*late.shape, seed=2)).sum()).backward()
        results.append((early.detach(), late.detach()))
    return {
        "outputs": all(torch.equal(x, y) for x, y in zip(*results, strict=True)),
        "weights": same_weights(ours, native),
    }


def test_two_forwards_in_flight(ranks: RankPool) -> None:
    assert ranks.run(2, two_in_flight) == [{"outputs": True, "weights": True}] * 2


def evaluation(rank: int, world: int) -> dict[str, Any]:
    ours, native = pair(INT8, world)
    features = batch(TABLES, 5, seed=rank)
    before = local_weights(ours)
    with measure_traffic(ours) as meter:
        ours.eval()
        with torch.no_grad():
            got, want = ours(features).values(), native(features).values()
    return {
        "error": float((got - want).abs().max() / want.abs().max()),
        "requires grad": got.requires_grad,
        "backward bytes": meter.local().wire_bytes(direction="backward"),
        "forward bytes": meter.local().wire_bytes(direction="forward"),
        "unchanged": all(torch.equal(before[key], now) for key, now in local_weights(ours).items()),
        "buffers": [name for name, _ in ours.named_buffers()] == [name for name, _ in native.named_buffers()],
        "parameters": [name for name, _ in ours.named_parameters()] == [name for name, _ in native.named_parameters()],
        "optimizer": list(ours.fused_optimizer.state_dict()["state"]) == list(native.fused_optimizer.state_dict()["state"]),
    }


def test_evaluation_quantizes_the_forward_and_changes_nothing(ranks: RankPool) -> None:
    for answer in ranks.run(2, evaluation):
        assert 0 < answer["error"] < 0.01
        assert not answer["requires grad"]
        assert answer["backward bytes"] == 0
        assert answer["forward bytes"] > 0
        assert all(answer[key] for key in ("unchanged", "buffers", "parameters", "optimizer"))


def accumulated(rank: int, world: int) -> dict[str, bool]:
    """Three backwards before the gradients are looked at, with tables that have no fused optimizer."""
    plan = placed(TABLES, "table_wise", world)
    for sharding in plan.values():
        sharding.compute_kernel = "dense"
    pairs = [
        shard(sharder, collection(), plan)
        for sharder in (QCommEmbeddingBagCollectionSharder(), EmbeddingBagCollectionSharder())
    ]
    for i in range(3):
        for sharded in pairs:
            step(sharded, batch(TABLES, 4, seed=10 * i + rank), seed=i)
    ours, native = ({n: p.grad for n, p in sharded.named_parameters() if p.grad is not None} for sharded in pairs)
    return {
        "equal": ours.keys() == native.keys() and all(torch.equal(ours[name], native[name]) for name in ours),
        "some": any(grad.abs().sum() > 0 for grad in ours.values()),
    }


def test_gradients_accumulate_as_torchrecs_do(ranks: RankPool) -> None:
    assert ranks.run(2, accumulated) == [{"equal": True, "some": True}] * 2


def state_dicts(rank: int, world: int) -> dict[str, bool]:
    """Each loads what the other saved."""
    ours, native = pair(Policy(), world)
    features = batch(TABLES, 5, seed=rank)
    step(ours, features, seed=rank)
    differ = not same_weights(ours, native)
    native.load_state_dict(ours.state_dict())
    back = same_weights(ours, native)
    step(native, features, seed=rank)
    ours.load_state_dict(native.state_dict())
    return {"differ": differ, "native loads ours": back, "ours loads native": same_weights(ours, native)}


def test_state_dicts_are_interchangeable(ranks: RankPool) -> None:
    assert ranks.run(2, state_dicts) == [{"differ": True, "native loads ours": True, "ours loads native": True}] * 2


def gradient_division(rank: int, world: int) -> list[bool]:
    answers = []
    for on in (False, True):
        comm_ops.set_gradient_division(on)
        try:
            ours, native = pair(Policy(), world)
            for sharded in (ours, native):
                step(sharded, batch(TABLES, 5, seed=rank), seed=rank)
        finally:
            comm_ops.set_gradient_division(True)
        answers.append(same_weights(ours, native))
    return answers


def test_gradient_division_is_torchrecs_switch(ranks: RankPool) -> None:
    assert ranks.run(3, gradient_division) == [[True, True]] * 3


def half_output(rank: int, world: int) -> dict[str, Any]:
    exact, native = pair(Policy(), world, output_dtype=SparseType.FP16)
    quantized, _ = pair(INT8, world, output_dtype=SparseType.FP16)
    features = batch(TABLES, 5, seed=rank)
    outs = []
    for sharded in (exact, native, quantized):
        out = sharded(features).values()
        out.backward(upstream(*out.shape, seed=rank).half() * 100)
        outs.append(out.detach())
    equal = torch.equal(outs[0], outs[1]) and same_weights(exact, native)
    with measure_traffic(exact) as meter:
        step_out = exact(features).values()
        step_out.backward(torch.ones_like(step_out))
    return {
        "dtypes": [str(out.dtype) for out in outs],
        "exact": equal,
        "error": float((outs[2] - outs[1]).float().abs().max() / outs[1].float().abs().max()),
        "two bytes a value": meter.local().wire_bytes() == meter.local().fp32_bytes() // 2,
    }


def test_sixteen_bit_output(ranks: RankPool) -> None:
    for answer in ranks.run(2, half_output):
        assert answer["dtypes"] == ["torch.float16"] * 3
        assert answer["exact"]
        assert 0 < answer["error"] < 0.01
        assert answer["two bytes a value"]


ODD = [[Column("a", 5), Column("b", 1), Column("a", 5)], [], [Column("c", 33), Column("b", 7)]]


def odd_dims(rank: int, world: int, names: dict[str, str], sizes: tuple[int, ...]) -> dict[str, Any]:
    """The dist alone, with dims that FBGEMM's lookups do not take; a lookup of random rows stands in."""
    policy = Policy(rules=tuple(Rule(tables=t, forward=name, backward=name) for t, name in names.items()))
    sites = TableCodecs(policy.resolve(Table(t, 10, 10) for t in "abc"), world, codecs.get)
    output_dist = QCommPooledEmbeddingDist(hop(dist.group.WORLD, ODD, torch.float32, sites, Observers()))
    width = sum(column.dim for column in ODD[rank])
    lookups = [
        torch.randn(sum(sizes), sum(c.dim for c in owned), generator=torch.Generator().manual_seed(i))
        for i, owned in enumerate(ODD)
    ]
    lookup = lookups[rank].clone().requires_grad_()
    # A rank without tables hands over a flat empty tensor, as TorchRec's lookup does.
    out = output_dist(lookup if width else lookup.view(-1), EmbeddingShardingContext(batch_size_per_rank=list(sizes))).wait()
    first = sum(sizes[:rank])
    want = torch.cat([full[first : first + sizes[rank]] for full in lookups], dim=1)
    gradients = [
        torch.randn(size, want.shape[1], generator=torch.Generator().manual_seed(50 + i)) for i, size in enumerate(sizes)
    ]
    out.backward(gradients[rank])
    start = sum(c.dim for owned in ODD[:rank] for c in owned)
    want_gradient = torch.cat([g[:, start : start + width] for g in gradients])

    def over(error: torch.Tensor, values: torch.Tensor, columns: list[Column]) -> float:
        worst, at = 0.0, 0
        for column in columns:
            part = slice(at, at + column.dim)
            # Dividing by the world and multiplying again rounds twice.
            limit = codecs.get(names[column.table]).error_bound(values[:, part]) + 2**-22 * values[:, part].abs()
            if values.shape[0]:
                worst = max(worst, float((error[:, part].abs() / limit.clamp_min(1e-38)).max()))
            at += column.dim
        return worst

    every = [column for owned in ODD for column in owned]
    return {
        "forward": over(out.detach() - want, want, every),
        "backward": over(lookup.grad * world - want_gradient, want_gradient, ODD[rank]) if width else 0.0,
        "differs": not torch.equal(out.detach(), want),
        "shape": tuple(out.shape) == tuple(want.shape),
    }


@pytest.mark.parametrize("names", [{"a": "int4", "b": "int8", "c": "fp8_e4m3"}, {"a": "fp8_e5m2", "b": "int4", "c": "int8"}])
@pytest.mark.parametrize("sizes", [(7, 7, 7), (3, 1, 0)])
def test_odd_dims_on_three_ranks(ranks: RankPool, names: dict[str, str], sizes: tuple[int, ...]) -> None:
    for rank, answer in enumerate(ranks.run(3, odd_dims, names, sizes)):
        assert answer["forward"] <= 1, answer
        assert answer["backward"] <= 1, answer
        assert answer["shape"]
        assert answer["differs"] == (sizes[rank] > 0)


def per_link(rank: int, world: int) -> dict[str, Any]:
    """Two hosts of two ranks: exact inside a host, 4 bits across."""
    policy = Policy(rules=(Rule(link="inter_host", forward="int4", backward="int4"),))
    plan = placed(TABLES, "table_wise", world)
    sharder = QCommEmbeddingBagCollectionSharder(policy, fused_params=SGD)
    ours = shard(sharder, collection(), plan)
    native = shard(EmbeddingBagCollectionSharder(fused_params=SGD), collection(), plan)
    features = batch(TABLES, 3 + rank, seed=rank)
    with measure_traffic(ours) as meter:
        got = ours(features)
        got.values().backward(upstream(*got.values().shape, seed=rank))
    want = native(features)
    owner = {t.name: plan[t.name].ranks[0] for t in TABLES}
    exact = {t.name: all(torch.equal(got[feature], want[feature]) for feature in t.features) for t in TABLES}
    return {
        "exact": exact,
        "expected": {name: rank // 2 == holder // 2 for name, holder in owner.items()},
        "bytes": {
            (flow.table, flow.destination, flow.direction): (cell.values, cell.wire_bytes)
            for flow, cell in meter.local().flows(include_self=True)
        },
    }


def test_codecs_by_link(ranks: RankPool) -> None:
    dims = {t.name: t.dim for t in TABLES}
    for rank, answer in enumerate(ranks.run(4, per_link, env={"LOCAL_WORLD_SIZE": "2"})):
        assert answer["exact"] == answer["expected"]
        for (table, destination, _), (values, wire_bytes) in answer["bytes"].items():
            rows, dim = values // dims[table], dims[table]
            assert wire_bytes == (4 * values if destination // 2 == rank // 2 else rows * (dim // 2 + 4))


def own_share(rank: int, world: int) -> list[dict[str, bool]]:
    """A rule that names `self`, with and without knowing how many ranks a host has."""
    answers = []
    for hosts in (None, world):
        policy = Policy("int8", "int8", rules=(Rule(link="self", forward="none"),))
        sites = TableCodecs(policy.resolve([Table("a", 10, 4), Table("b", 10, 4)]), hosts, codecs.get)
        output_dist = QCommPooledEmbeddingDist(
            hop(dist.group.WORLD, [[Column("a", 4)], [Column("b", 4)]], torch.float32, sites, Observers())
        )
        lookups = [torch.randn(6, 4, generator=torch.Generator().manual_seed(i)) for i in range(world)]
        out = output_dist(lookups[rank]).wait()
        mine = slice(3 * rank, 3 * rank + 3)
        answers.append({name: torch.equal(out[:, 4 * i : 4 * i + 4], lookups[i][mine]) for i, name in enumerate("ab")})
    return answers


def test_a_rank_keeps_its_own_share_exact_if_a_rule_says_so(ranks: RankPool) -> None:
    assert ranks.run(2, own_share) == [[{"a": True, "b": False}] * 2, [{"a": False, "b": True}] * 2]


def strided_groups(rank: int, world: int, hosts: int) -> dict[str, Any]:
    """Groups [0, 2] and [1, 3]: neighbours in the group, but not on a host of two."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    group = groups[rank % 2]
    policy = Policy("none", "none", rules=(Rule(link="inter_host", forward="int8"),))
    sites, observers, meter = TableCodecs(policy.resolve([Table("a", 10, 4)]), hosts, codecs.get), Observers(), TrafficMeter()
    observers.active.append(meter)
    output_dist = QCommPooledEmbeddingDist(hop(group, [[Column("a", 4)], []], torch.float32, sites, observers))
    lookup = torch.randn(6, 4, generator=torch.Generator().manual_seed(rank % 2))
    context = EmbeddingShardingContext(batch_size_per_rank=[3, 3])
    out = output_dist(lookup if rank < 2 else torch.empty(0), context).wait()
    first = 3 * group.rank()
    return {
        "exact": torch.equal(out, lookup[first : first + 3]),
        "flows": [(flow.source, flow.destination) for flow, _ in meter.local().flows(include_self=True)],
    }


def test_links_and_flows_are_of_global_ranks(ranks: RankPool) -> None:
    across = ranks.run(4, strided_groups, 2)
    assert [answer["exact"] for answer in across] == [True, True, False, False]
    assert [answer["flows"] for answer in across] == [[(0, 0), (0, 2)], [(1, 1), (1, 3)], [], []]
    assert all(answer["exact"] for answer in ranks.run(4, strided_groups, 4))


def table_less_half(rank: int, world: int) -> dict[str, Any]:
    plan = placed(TABLES, "table_wise", world, holders=1)
    outs = []
    for output_dtype in (SparseType.FP16, SparseType.FP32):
        sharder = QCommEmbeddingBagCollectionSharder(fused_params={**SGD, "output_dtype": output_dtype})
        out = shard(sharder, collection(), plan)(batch(TABLES, 4, seed=rank)).values()
        out.backward(torch.ones_like(out))
        outs.append(out.detach())
    return {"dtype": str(outs[0].dtype), "close": torch.allclose(outs[0].float(), outs[1], rtol=2**-10, atol=1e-4)}


def test_sixteen_bit_output_with_a_rank_that_has_no_table(ranks: RankPool) -> None:
    """Its lookup hands over an empty FP32 tensor. TorchRec's own exchange is killed by that on gloo."""
    assert ranks.run(3, table_less_half) == [{"dtype": "torch.float16", "close": True}] * 3


def on_meta(rank: int, world: int) -> list[set[str]]:
    plan = placed(TABLES, "column_wise", world)
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    devices = []
    for sharder in (
        QCommEmbeddingBagCollectionSharder(INT8, fused_params=SGD),
        EmbeddingBagCollectionSharder(fused_params=SGD),
    ):
        sharded = sharder.shard(collection(), plan, env, torch.device("meta"), module_fqn="ebc")
        devices.append({parameter.device.type for parameter in sharded.parameters()})
    return devices


def test_meta_device(ranks: RankPool) -> None:
    assert ranks.run(2, on_meta) == [[{"meta"}, {"meta"}]] * 2


def idle_rules(rank: int, world: int) -> tuple[list[str], list[str]]:
    """What is logged when a data-parallel table has a quantizing rule; and the order of the sharding types."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("torchrec_qcomm").addHandler(handler)
    order = ["table_column_wise", "column_wise", "table_wise", "data_parallel"]
    sharder = QCommEmbeddingBagCollectionSharder(INT8, fused_params=SGD, sharded_module_order_overwrite=order)
    sharded = shard(sharder, collection(), placed(TABLES, "mixed", world))
    logging.getLogger("torchrec_qcomm").removeHandler(handler)
    return said, sharded._sharding_types


def test_a_rule_without_an_exchange_is_warned_of(ranks: RankPool) -> None:
    for said, order in ranks.run(2, idle_rules):
        assert said == ["the policy quantizes tables that are data-parallel and so are not exchanged: t3"]
        assert order == ["table_column_wise", "column_wise", "table_wise", "data_parallel"]


def nested_meters(rank: int, world: int) -> list[int]:
    ours, _ = pair(Policy(), world)
    sizes = []
    with measure_traffic(ours) as outer:
        try:
            with measure_traffic(ours) as inner:
                step(ours, batch(TABLES, 4, seed=rank), seed=rank)
                sizes += [outer.local().wire_bytes(), inner.local().wire_bytes()]
                raise KeyError
        except KeyError:
            step(ours, batch(TABLES, 4, seed=rank), seed=rank)
        sizes += [outer.local().wire_bytes(), inner.local().wire_bytes()]
    return sizes


def test_meters_nest_and_let_go_after_an_exception(ranks: RankPool) -> None:
    for once, inside, twice, after in ranks.run(2, nested_meters):
        assert 0 < once == inside == after
        assert twice == 2 * once


def test_a_buffer_that_the_layout_does_not_have_is_not_counted() -> None:
    side = Side((0, 0), torch.float32, (), (3,), ({"a": Cell(1, 3)},))
    sent = Launch("all_to_all", "forward", None, side, torch.zeros(0, 0), torch.zeros(4, dtype=torch.uint8))
    with pytest.raises(WireError, match="not what the layout says; got 4; allowed: 3"):
        TrafficMeter().launched(sent)


def wrong_calls(rank: int, world: int) -> list[str]:
    sites = TableCodecs(INT8.resolve([Table("a", 10, 4)]), world, codecs.get)
    output_dist = QCommPooledEmbeddingDist(hop(dist.group.WORLD, [[Column("a", 4)], []], torch.float32, sites, Observers()))
    width = 4 if rank == 0 else 0
    said = []
    for rows, context in (
        (3, None),  # 3 samples over 2 ranks
        (4, EmbeddingShardingContext(batch_size_per_rank=[3, 3])),
        (4, EmbeddingShardingContext(variable_batch_per_feature=True)),  # but no batch sizes
    ):
        try:
            output_dist(torch.ones(rows, width or 1), context)
        except WireError as error:
            said.append(str(error))
    awaitable = output_dist(torch.ones(4, width))
    awaitable.wait()
    try:
        awaitable.wait()
    except WireError as error:
        said.append(str(error))
    return said


def test_wrong_calls_say_what_is_wrong(ranks: RankPool) -> None:
    for said in ranks.run(2, wrong_calls):
        assert "does not divide among the ranks; got 3" in said[0]
        assert "values do not fit the layout" in said[1]
        assert "not one batch size for each column of each rank" in said[2]
        assert "nothing is in flight" in said[3]


def test_nothing_to_measure_is_an_error() -> None:
    with pytest.raises(WireError, match="no module"), measure_traffic(torch.nn.Linear(1, 1)):
        pass
