"""What the ranks of the tests of ranges do: tables whose rows share a range that their sender keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import torchrec_qcomm as qc
from tests.sharding.scenarios.pooled_collections import shard
from tests.sharding.scenarios.reduce_scatter import HIERARCHICAL, Dealt
from tests.sharding.scenarios.sequences import SEQUENCES, feature_batch, flat, sequence_gradient, sequence_plan, shard_sequences
from tests.sharding.scenarios.tables import LOCAL, SGD, TABLES, batch, collection, local_weights, placed, upstream
from tests.sharding.scenarios.variable_batch import SIZES as RAGGED
from tests.sharding.scenarios.variable_batch import ragged
from torchrec_qcomm.policy import Policy

WHOLE = ("table_wise", "column_wise", "table_column_wise")


class Case:
    """A module under a policy, and batches for it.

    Args:
        kind: sharding type, ``sequences``, or a type followed by ``, variable``.
        world: ranks.
    """

    def __init__(self, kind: str, world: int) -> None:
        self.kind, _, variable = kind.partition(", ")
        self.world, self.variable = world, bool(variable)

    def module(self, policy: Policy | None, fqn: str, seed: int = 1) -> Any:
        """Sharded."""
        if self.kind == "sequences":
            sharder = qc.QCommEmbeddingCollectionSharder(policy, fused_params=SGD, seed=seed)
            return shard_sequences(sharder, sequence_plan(SEQUENCES, "mixed", self.world), fqn=fqn)
        plan = placed(TABLES, self.kind, self.world) if self.kind in WHOLE else Dealt(self.kind, self.world).plan
        sharder = qc.QCommEmbeddingBagCollectionSharder(
            policy, fused_params=SGD, seed=seed, hierarchical_row_wise=self.kind == HIERARCHICAL
        )
        return shard(sharder, collection(weighted=True), plan, fqn=fqn)

    def forward(self, sharded: Any, size: int, seed: int) -> torch.Tensor:
        """One flat output."""
        if self.kind == "sequences":
            return flat(sharded(feature_batch(SEQUENCES, size, seed)))
        if self.variable:
            return sharded(ragged(TABLES, RAGGED[size % len(RAGGED)], seed=seed, weighted=True)).values()
        return sharded(batch(TABLES, size, seed=seed, weighted=True)).values()

    def gradient(self, out: torch.Tensor, seed: int) -> torch.Tensor:
        """Of that output."""
        return (
            sequence_gradient(*out.shape, seed)
            if self.kind == "sequences"
            else torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)) * 1e-3
        )


def trained(rank: int, world: int, kind: str, sizes: Sequence[int], policy: Policy) -> dict[str, Any]:
    """Three steps, quantized and exact: how far apart they are, and what is counted and kept."""
    case = Case(kind, world)
    quantized, exact = case.module(policy, "quantized"), case.module(None, "exact")
    model = torch.nn.ModuleDict({"sparse": quantized})
    found: dict[str, Any] = {"errors": [], "different": True}
    with qc.measure_traffic(model) as meter:
        for i in range(3):
            outs = [case.forward(sharded, sizes[rank], seed=10 * i + rank) for sharded in (quantized, exact)]
            gradient = case.gradient(outs[1], seed=i + rank)
            for out in outs:
                out.backward(gradient)
            got, want = (out.detach() for out in outs)
            if want.numel():
                found["errors"].append(float((got - want).norm() / want.norm()))
                found["different"] &= not torch.equal(got, want)
        traffic = meter.gather()
    start = case.module(None, "start")
    moved = [{key: local_weights(start)[key] - w for key, w in local_weights(module).items()} for module in (quantized, exact)]
    norms = [[part.norm() ** 2 for part in (moved[0][key] - moved[1][key], moved[1][key])] for key in moved[1]]
    sums = torch.tensor(norms).sum(0) if norms else torch.zeros(2)
    dist.all_reduce(sums)
    found["gradients"] = float((sums[0] / sums[1]).sqrt())
    found["state"] = {
        name: {table: {key: float(value) for key, value in saved.items()} for table, saved in tables.items()}
        for name, tables in qc.state_dict(model)["sparse"].get("ranges", {f"rank {rank}": {}})[f"rank {rank}"].items()
    }
    found["heads"] = {
        direction: sum(cell.wire_bytes - cell.values for _, cell in traffic.flows(direction=direction, include_self=True))
        for direction in ("forward", "backward")
    }
    found["keys"] = any("qcomm" in key or "range" in key for key in quantized.state_dict())
    return found


def resumed(rank: int, world: int, kind: str) -> dict[str, Any]:
    """A run that is saved after two steps and goes on in another module, beside one that goes on by itself."""
    case, policy = Case(kind, world), Policy(*[{"codec": "int8", "range": {"ema": 0.5}, "rounding": "stochastic"}] * 2)
    runs = [
        torch.nn.ModuleDict({"sparse": case.module(policy, "one")}),
        torch.nn.ModuleDict({"sparse": case.module(policy, "one")}),
    ]

    def step(model: Any, i: int) -> torch.Tensor:
        out = case.forward(model["sparse"], 4, seed=10 * i + rank)
        out.backward(case.gradient(out, seed=i + rank))
        return out.detach()

    for i in range(2):
        step(runs[0], i)
    saved = qc.state_dict(runs[0])
    runs[0].eval()
    case.forward(runs[0]["sparse"], 4, seed=99)
    same_after_evaluation = flattened(qc.state_dict(runs[0])) == flattened(saved)
    runs[0].train()
    step(runs[0], 2)
    at_three = qc.state_dict(runs[0])
    # The other run has the weights of the first, which it is given, and its memory.
    before = case.module(policy, "one")
    for i in range(2):
        step({"sparse": before}, i)
    runs[1]["sparse"].load_state_dict(before.state_dict())
    fresh = step(runs[1], 2)  # with a range of this step alone
    runs[1]["sparse"].load_state_dict(before.state_dict())
    qc.load_state_dict(runs[1], saved)
    loaded = flattened(qc.state_dict(runs[1])) == flattened(saved)
    qc.load_state_dict(runs[1], {"sparse": {**saved["sparse"]}})
    out, again = step(runs[1], 2), flattened(qc.state_dict(runs[1])) == flattened(at_three)
    qc.load_state_dict(runs[1], {"sparse": {"step": 2}})
    anew = flattened(qc.state_dict(runs[1]))
    return {
        "evaluation changes nothing": same_after_evaluation,
        "loaded": loaded,
        "goes on alike": again,
        "memory matters": not torch.equal(fresh, out),
        "begins anew": all(value == 0 for key, value in anew.items() if key != "sparse/step"),
        "state": sorted(flattened(saved)),
    }


def flattened(state: Any, path: str = "") -> dict[str, float]:
    """Numbers by path."""
    if not isinstance(state, dict):
        return {path: float(state)}
    found: dict[str, float] = {}
    for key, value in state.items():
        found |= flattened(value, f"{path}/{key}" if path else key)
    return found


def statistics(rank: int, world: int) -> dict[str, Any]:
    """Table-wise forwards under a moving range, and what its statistics should be by hand from the exact lookups."""
    decay = 0.75
    policy = Policy(forward={"codec": "int8", "range": {"ema": decay}})
    case = Case("table_wise", world)
    sharded = case.module(policy, "one")
    model = torch.nn.ModuleDict({"sparse": sharded})
    by_hand: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    weights = {t.name: collection(weighted=True).embedding_bags[t.name] for t in TABLES}
    owned = [t for i, t in enumerate(TABLES) if i % world == rank]
    for i in range(3):
        batches = [batch(TABLES, 4, seed=10 * i + other, weighted=True) for other in range(world)]
        with torch.no_grad():
            sharded(batches[rank])
        for t in owned:
            bag, parts = weights[t.name], []
            for features in batches:
                for feature in t.features:
                    one = features[feature]
                    parts.append(
                        torch.nn.functional.embedding_bag(
                            one.values(), bag.weight.detach(), one.offsets()[:-1], mode="sum", per_sample_weights=one.weights()
                        )
                    )
            sent = torch.cat(parts).double()
            now = [float(sent.min()), float(sent.max()), float(sent.mean()), float(sent.std(correction=0))]
            old = by_hand.get(t.name)
            by_hand[t.name] = now if old is None else [decay * a + (1 - decay) * b for a, b in zip(old, now, strict=True)]
            counts[t.name] = counts.get(t.name, 0) + sent.numel()
    (tables,) = qc.state_dict(model)["sparse"]["ranges"][f"rank {rank}"].values()
    kept = {
        name.split()[0]: [float(saved[key]) for key in ("minimum", "maximum", "mean", "std")] for name, saved in tables.items()
    }
    return {
        "worst": max(abs(a - b) for name in by_hand for a, b in zip(kept[name], by_hand[name], strict=True)),
        "tables": sorted(kept) == sorted(t.name for t in owned),
        "values": {name.split()[0]: int(saved["values"]) for name, saved in tables.items()} == counts,
        "updates": {int(saved["updates"]) for saved in tables.values()},
    }


def saturated(rank: int, world: int) -> dict[str, Any]:
    """A static range that is too small, and an upstream gradient with a NaN."""
    policy = Policy(*[{"codec": "int8", "range": {"static": [-0.5, 0.5]}}] * 2)
    case = Case("table_wise", world)
    sharded, exact = case.module(policy, "one"), case.module(None, "exact")
    model = torch.nn.ModuleDict({"sparse": sharded})
    out, want = (case.forward(module, 4, seed=rank) for module in (sharded, exact))
    gradient = upstream(*out.shape, seed=rank)
    gradient[0, 0] = torch.nan
    out.backward(gradient)
    want = want.detach()
    names = qc.state_dict(model)["sparse"]["ranges"][f"rank {rank}"]
    counted = {
        direction: sum(int(saved[key]) for name, tables in names.items() if direction in name for saved in tables.values())
        for direction, key in (("forward", "saturated"), ("backward", "not finite"))
    }
    total = torch.tensor([counted["forward"], int((want.abs() > 0.501).sum())])
    dist.all_reduce(total)
    return {
        "largest": float(out.detach().abs().max()),
        "counted": int(total[0]),
        "beyond": int(total[1]),
        "not finite": counted["backward"],
    }


def refused(rank: int, world: int) -> list[str]:
    """States of another plan, codec or rank."""
    case = Case("table_wise", world)
    policy = Policy(forward={"codec": "int8", "range": {"ema": 0.5}})
    model = torch.nn.ModuleDict({"sparse": case.module(policy, "one")})
    saved = qc.state_dict(model)["sparse"]
    mine = f"rank {rank}"
    (name,) = saved["ranges"][mine]
    table = next(iter(saved["ranges"][mine][name]))
    wrong = [
        {"step": 0, "ranges": {"rank 7": saved["ranges"][mine]}},
        {"step": 0, "ranges": {mine: {"elsewhere": {}}}},
        {"step": 0, "ranges": {mine: {name: {"t9 int8": {}}}}},
        {"step": 0, "ranges": {mine: {name: {**saved["ranges"][mine][name], table: {"minimum": 0.0}}}}},
    ]
    messages = []
    for state in wrong:
        try:
            qc.load_state_dict(model, {"sparse": state})
        except qc.ShardingError as error:
            messages.append(str(error))
    return messages


def of_all_ranks(rank: int, world: int) -> dict[str, Any]:
    """A state with the ranges of all ranks, of which the others send nothing that has one, or everything has none."""
    policy = Policy(forward={"codec": "int8", "range": {"ema": 0.5}})
    plan = placed(TABLES, "table_wise", world, holders=1)

    def model(policy: Policy) -> Any:
        sharder = qc.QCommEmbeddingBagCollectionSharder(policy, fused_params=SGD)
        return torch.nn.ModuleDict({"sparse": shard(sharder, collection(weighted=True), plan)})

    trained, again = model(policy), model(policy)
    trained["sparse"](batch(TABLES, 4, seed=rank, weighted=True)).values()
    saved: list[Any] = [None] * world
    dist.all_gather_object(saved, qc.state_dict(trained))
    ranges = {mine: found for each in saved for mine, found in each["sparse"].get("ranges", {}).items()}
    merged = {"sparse": {"step": 1, "ranges": ranges}}
    qc.load_state_dict(again, merged)
    try:
        qc.load_state_dict(model(Policy()), merged)
        refusal = ""
    except qc.ShardingError as error:
        refusal = str(error)
    same = flattened(qc.state_dict(again)) == flattened(qc.state_dict(trained))
    return {"same": same, "ranks": sorted(ranges), "refusal": refusal}


def agreed(rank: int, world: int, ranges: Sequence[Any]) -> str:
    """What ranks say at start-up whose ranges are not the same."""
    try:
        Case("table_wise", world).module(Policy(forward={"codec": "int8", "range": ranges[rank]}), "one")
    except qc.DisagreementError as error:
        return str(error)
    return "agreed"


def checkpointed(rank: int, world: int, folder: str) -> list[bool]:
    """Two collections with the same tables go through a checkpoint of all ranks, and then train alike."""
    case = Case("table_wise", world)
    policy = Policy(*[{"codec": "int4", "range": {"ema": 0.5}, "rounding": "stochastic"}] * 2)
    runs = [torch.nn.ModuleDict({name: case.module(policy, name) for name in ("left", "a / right, (b)")}) for _ in range(2)]

    def step(model: Any, i: int) -> list[torch.Tensor]:
        outs = [case.forward(sharded, 4, seed=10 * i + j + rank) for j, sharded in enumerate(model.values())]
        for out in outs:
            out.backward(case.gradient(out, seed=i))
        return [out.detach() for out in outs]

    for i in range(2):
        step(runs[0], i)
    saved = {"model": runs[0].state_dict(), "qcomm": qc.state_dict(runs[0])}
    dcp.save(saved, checkpoint_id=folder)
    into = {"model": runs[1].state_dict(), "qcomm": qc.state_dict(runs[1])}
    before = flattened(into["qcomm"])
    dcp.load(into, checkpoint_id=folder)
    runs[1].load_state_dict(into["model"])
    qc.load_state_dict(runs[1], into["qcomm"])
    answers = [flattened(qc.state_dict(runs[1])) == flattened(saved["qcomm"]) != before]
    for i in range(2, 4):
        answers += [torch.equal(*outs) for outs in zip(*(step(run, i) for run in runs), strict=True)]
    return answers


LOCALS = {"LOCAL_WORLD_SIZE": str(LOCAL)}
