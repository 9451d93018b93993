"""Layouts belong to a version of the precision, which may change between steps."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tests.ranks import RankPool
from torchrec_qcomm import codecs
from torchrec_qcomm.collectives import Observers
from torchrec_qcomm.policy import Policy, Table
from torchrec_qcomm.sharding.dists.hop import Hop
from torchrec_qcomm.sharding.dists.pooled import QCommPooledEmbeddingDist
from torchrec_qcomm.sharding.dists.settings import CollectionSettings, HopSettings
from torchrec_qcomm.sharding.precision import Precision, TableCodecs
from torchrec_qcomm.sharding.traffic import TrafficMeter
from torchrec_qcomm.state.exchange import ExchangeState
from torchrec_qcomm.wire import Column

DIM, BATCH = 16, 3
MOVING = {"codec": "int8", "range": {"ema": 0.5}}


def version(codec: Any) -> TableCodecs:
    return TableCodecs(Policy(codec, codec).resolve([Table("a", 10, DIM), Table("b", 10, DIM)]), 2, codecs.get)


def switched(rank: int, world: int) -> dict[str, Any]:
    """Bytes by direction of a step in int8, one in int4 and one in int8 again; the first backward comes after the switch."""
    first, second = version("int8"), version("int4")
    precision, observers, meter = Precision(first), Observers(), TrafficMeter()
    columns = [[Column("a", DIM)], [Column("b", DIM)]]
    hop = Hop(HopSettings(dist.group.WORLD, columns, torch.float32, CollectionSettings(precision, observers)))
    output_dist = QCommPooledEmbeddingDist(hop)
    layouts, sent, errors = [], [], []
    generator = torch.Generator().manual_seed(rank)
    with observers.attached(meter):
        for codec, then in ((first, second), (second, first), (first, second)):
            precision.codecs = codec
            layouts.append(hop.layouts().forward)
            lookup = torch.randn(BATCH * world, DIM, generator=generator).requires_grad_()
            values = output_dist(lookup).wait()
            precision.codecs = then  # between a forward and its backward
            values.backward(torch.ones_like(values))
            local = meter.local()
            sent.append([local.wire_bytes(direction=way, include_self=True) for way in ("forward", "backward")])
            errors.append(float((values[:, rank * DIM :][:, :DIM] - lookup.detach()[rank * BATCH :][:BATCH]).abs().max()))
            meter.reset()
    return {"sent": sent, "kept": layouts[0] is layouts[2] and layouts[0] is not layouts[1], "errors": errors}


def test_precision_changes_between_steps_and_a_backward_keeps_that_of_its_forward(ranks: RankPool) -> None:
    for answer in ranks.run(2, switched):
        rows = 2 * BATCH  # of this rank's table to both ranks, and of both tables' gradients
        int8, int4 = rows * (DIM + 8), rows * (DIM // 2 + 4)
        assert answer["sent"] == [[int8, int8], [int4, int4], [int8, int8]]
        assert answer["kept"]
        assert 0 < max(answer["errors"][::2]) < answer["errors"][1]


def statistics(rank: int, world: int) -> list[int]:
    """How many steps a running range has seen, after a step in each of two versions that have it."""
    precision, state = Precision(version(MOVING)), ExchangeState()
    columns = [[Column("a", DIM)], [Column("b", DIM)]]
    hop = Hop(HopSettings(dist.group.WORLD, columns, torch.float32, CollectionSettings(precision, state=state)))
    for _ in range(2):
        QCommPooledEmbeddingDist(hop)(torch.ones(BATCH * world, DIM)).wait()
        precision.codecs = version(MOVING)
    saved = state.ranges.state()
    assert saved is not None
    forward = [tables for name, tables in saved[f"rank {rank}"].items() if "forward" in name]
    return [int(table["updates"]) for tables in forward for table in tables.values()]


def test_running_ranges_go_on_in_another_version(ranks: RankPool) -> None:
    assert ranks.run(2, statistics) == [[2], [2]]


def test_every_part_of_a_state_can_be_saved_checked_loaded_and_reset() -> None:
    one, other = ExchangeState(), ExchangeState()
    tables = [(name, codecs.get(MOVING)) for name in "ab"]
    for state in (one, other):
        assert state.ranges.of("here/forward", 3, tables) is not None
    fresh = {name: part.state() for name, part in one.parts.items()}
    one.advance(training=True)
    ranges = one.ranges.of("here/forward", 3, tables)
    assert ranges is not None
    ranges._averages += 1
    for name, part in one.parts.items():
        saved = part.state()
        assert str(saved) != str(fresh[name])
        other.parts[name].check("here", saved)
        other.parts[name].load(saved)
        assert str(other.parts[name].state()) == str(saved)
        other.parts[name].reset()
        assert str(other.parts[name].state()) == str(fresh[name])
