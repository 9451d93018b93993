"""The exchange on real ranks: a flight of several all-to-alls, and what an observer is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.ranks import RankPool
from torchrec_qcomm import codecs
from torchrec_qcomm.codecs import Codec, Noise
from torchrec_qcomm.collectives import Exchange, ExchangeLayout, Launch, Observers, unpack
from torchrec_qcomm.wire import Column, PooledLayout, ReduceLayout, Side

DIM = 4
SIZES = (3, 2)
NOISE = Noise(seed=7, site="here")
STOCHASTIC = {"codec": "int4", "rounding": "stochastic"}
CODECS = {"a": "int8", "b": "fp16", "c": STOCHASTIC, "d": STOCHASTIC}


class Seen:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []

    def launched(self, launch: Launch) -> None:
        self.launches.append(launch)


def layout_of(kind: type[PooledLayout], tables: str) -> ExchangeLayout:
    """Both owners look up ``tables``, one column of `DIM` values each; the same codecs both ways."""

    def codec_of(table: str, link: int) -> Codec:
        return codecs.get(CODECS[table])

    layout = kind([[Column(table, DIM) for table in tables]] * 2, codec_of, lambda owner, sample: 0, torch.float32)
    me = dist.get_rank()
    owner, sample = layout.owner_side(me, SIZES), layout.sample_side(me, SIZES[me])
    return ExchangeLayout(owner, sample, sample, owner)


def part_of(layout: ExchangeLayout, column: int, columns: int) -> ExchangeLayout:
    """A layout of one column as a part of one of several, whose values it finds between the others'."""

    def wide(side: Side) -> Side:
        layers = [
            replace(layer, blocks=tuple(
                replace(block, stride=block.stride * columns, offsets=tuple(o * columns + column * DIM for o in block.offsets))
                for block in layer.blocks
            ))
            for layer in side.layers
        ]  # fmt: skip
        return replace(side, shape=(side.shape[0], side.shape[1] * columns), layers=tuple(layers))

    return ExchangeLayout(*(wide(getattr(layout, name)) for name in ExchangeLayout.__dataclass_fields__))


def exchanged(parts: list[ExchangeLayout], columns: int) -> dict[str, Any]:
    """Values and gradient of one exchange, and what was launched."""
    lookup = torch.randn(sum(SIZES), columns * DIM, generator=torch.Generator().manual_seed(dist.get_rank()))
    lookup = lookup[:, :DIM].repeat(1, columns).requires_grad_()
    observers, seen = Observers(), Seen()
    with observers.attached(seen):
        exchange = Exchange(dist.group.WORLD, parts, lambda: 2, observers, NOISE, {})
        exchange.start(lookup)
        values = exchange.wait()
        upstream = torch.randn(values.shape, generator=torch.Generator().manual_seed(9))
        values.backward(upstream)
    return {
        "values": values.detach(),
        "gradient": lookup.grad,
        "directions": [launch.direction for launch in seen.launches],
        "values seen": all(
            torch.equal(launch.values, lookup if launch.direction == "forward" else upstream) for launch in seen.launches
        ),
        "bytes seen": all(launch.buffer.numel() == launch.side.nbytes > 0 for launch in seen.launches),
        "lookup": lookup.detach(),
        "self": unpack(seen.launches[0].buffer, seen.launches[0].side) if len(parts) == 1 and columns == 1 else None,
    }


def in_parts(rank: int, world: int, kind: type[PooledLayout]) -> dict[str, bool]:
    one = exchanged([layout_of(kind, "ab")], 2)
    two = exchanged([part_of(layout_of(kind, table), i, 2) for i, table in enumerate("ab")], 2)
    return {
        "same values": torch.equal(one["values"], two["values"]),
        "same gradient": torch.equal(one["gradient"], two["gradient"]),
        "directions": (one["directions"], two["directions"]) == (["forward", "backward"], ["forward"] * 2 + ["backward"] * 2),
        "observed": all(each[key] for each in (one, two) for key in ("values seen", "bytes seen")),
    }


@pytest.mark.parametrize("kind", [PooledLayout, ReduceLayout])
def test_a_flight_of_two_parts_brings_what_one_brings(ranks: RankPool, kind: type[PooledLayout]) -> None:
    """Also where layers are added up; each part is a collective, and an observer sees values and bytes of each."""
    for answer in ranks.run(2, in_parts, kind):
        assert all(answer.values()), answer


def drawn(rank: int, world: int) -> tuple[bool, float]:
    found = exchanged([part_of(layout_of(PooledLayout, table), i, 2) for i, table in enumerate("cd")], 2)
    columns = found["values"].unflatten(1, (2, 2, DIM))
    return torch.equal(columns[:, :, 0], columns[:, :, 1]), float((columns[:, :, 0] - columns[:, :, 1]).abs().max())


def test_parts_of_a_flight_draw_their_own_noise(ranks: RankPool) -> None:
    """Equal values in equal places of two parts are rounded stochastically, apart from each other."""
    for equal, apart in ranks.run(2, drawn):
        assert not equal
        assert apart < 1


def observed(rank: int, world: int) -> bool:
    """What an observer is told decodes to what was sent."""
    found = exchanged([layout_of(PooledLayout, "a")], 1)
    bound = codecs.get("int8").error_bound(found["lookup"])
    error = (found["self"] - found["lookup"]).abs()
    return bool((error <= bound).all() and error.max() > 0)


def test_an_observer_can_decode_what_is_sent(ranks: RankPool) -> None:
    assert all(ranks.run(2, observed))


def test_an_observer_is_let_go_after_an_exception() -> None:
    observers, seen = Observers(), Seen()

    def fail() -> None:
        with observers.attached(seen):
            assert observers.active == [seen]
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not observers.active
