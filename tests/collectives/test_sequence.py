"""Sequences to bytes and back, all ranks played by one process: every vector arrives in its place, in its table's codec."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrec_qcomm import codecs
from torchrec_qcomm.collectives import from_wire, pack, to_wire, unpack
from torchrec_qcomm.errors import WireError
from torchrec_qcomm.wire import Column, PooledLayout, Side, sequence

NAMES = ("none", "fp16", "fp8_e4m3", "int8", "int4")
DIM = 5


def link_of(owner: int, sample: int) -> int:
    """Neighbouring ranks are on one host."""
    return int(owner // 2 != sample // 2)


Exchange = tuple[list[list[str]], list[list[list[int]]], Callable[[str, int, str], str]]


@st.composite
def exchanges(draw: st.DrawFn) -> Exchange:
    """Tables of each owner, counts ``[owner][sample][column]``, and the codec of a table, link and direction."""
    world = draw(st.integers(1, 4))
    owned = [draw(st.lists(st.sampled_from("abcd"), max_size=5)) for _ in range(world)]
    counts = [[[draw(st.integers(0, 3)) for _ in tables] for _ in range(world)] for tables in owned]
    names = {
        key: draw(st.sampled_from(NAMES))
        for key in ((t, link, direction) for t in "abcd" for link in (0, 1) for direction in ("forward", "backward"))
    }
    return owned, counts, lambda table, link, direction: names[table, link, direction]


def through(name: str, values: torch.Tensor) -> torch.Tensor:
    codec = codecs.get(name)
    return codec.decode(codec.encode(values), DIM) if len(values) else values


def travel(sent: list[torch.Tensor], out: list[Side], into: list[Side]) -> list[torch.Tensor]:
    """What an all-to-all makes of every rank's values: pack, cut, deliver, unpack."""
    cut = [pack(values.reshape(-1), side).split(list(side.splits)) for values, side in zip(sent, out, strict=True)]
    for a, side in enumerate(into):
        assert [len(cut[b][a]) for b in range(len(cut))] == list(side.splits)
    received = [torch.cat([pieces[rank] for pieces in cut]) for rank in range(len(sent))]
    return [unpack(buffer, side).view(-1, DIM) for buffer, side in zip(received, into, strict=True)]


@given(exchanges())
@settings(max_examples=150, deadline=None)
def test_every_vector_arrives_in_its_place(case: Exchange) -> None:
    owned, counts, name_of = case
    ranks = range(len(owned))
    columns = [[Column(table, DIM) for table in tables] for tables in owned]

    def layout(direction: str) -> PooledLayout[int]:
        return PooledLayout(columns, lambda table, link: codecs.get(name_of(table, link, direction)), link_of, torch.float32)

    there, back = layout("forward"), layout("backward")
    received = [[counts[owner][sample] for owner in ranks] for sample in ranks]
    lookup_out, lookup_there = zip(*(sequence.owner_side(there, rank, counts[rank]) for rank in ranks), strict=True)
    values_in, values_there = zip(*(sequence.sample_side(there, rank, received[rank]) for rank in ranks), strict=True)
    gradient_out, values_back = zip(*(sequence.sample_side(back, rank, received[rank]) for rank in ranks), strict=True)
    gradient_in, lookup_back = zip(*(sequence.owner_side(back, rank, counts[rank]) for rank in ranks), strict=True)

    # One random piece for every owner, column and sample rank; a lookup has them column by column.
    generator = torch.Generator().manual_seed(0)

    def random_pieces() -> dict[tuple[int, int, int], torch.Tensor]:
        return {
            (owner, column, sample): torch.randn(counts[owner][sample][column], DIM, generator=generator)
            for owner in ranks
            for column in range(len(owned[owner]))
            for sample in ranks
        }

    def at_owner(pieces: dict, owner: int) -> torch.Tensor:
        mine = [pieces[owner, column, sample] for column in range(len(owned[owner])) for sample in ranks]
        return torch.cat([torch.empty(0, DIM), *mine])

    def at_sample(pieces: dict, sample: int) -> torch.Tensor:
        mine = [pieces[owner, column, sample] for owner in ranks for column in range(len(owned[owner]))]
        return torch.cat([torch.empty(0, DIM), *mine])

    def coded(pieces: dict, direction: str) -> dict:
        return {
            (owner, column, sample): through(name_of(owned[owner][column], link_of(owner, sample), direction), piece)
            for (owner, column, sample), piece in pieces.items()
        }

    vectors, gradients = random_pieces(), random_pieces()
    lookups = [at_owner(vectors, rank).requires_grad_() for rank in ranks]
    on_wire = [to_wire(lookups[rank], lookup_there[rank], lookup_back[rank]) for rank in ranks]
    arrived = [values.requires_grad_() for values in travel([w.detach() for w in on_wire], lookup_out, values_in)]
    results = [from_wire(arrived[rank], values_there[rank], values_back[rank]) for rank in ranks]
    for rank in ranks:
        assert torch.equal(results[rank], at_sample(coded(vectors, "forward"), rank))
        results[rank].backward(at_sample(gradients, rank))
    for rank, wire_gradient in enumerate(travel([a.grad for a in arrived], gradient_out, gradient_in)):
        on_wire[rank].backward(wire_gradient)
        assert torch.equal(lookups[rank].grad, at_owner(coded(gradients, "backward"), rank))


def test_a_codec_is_called_once_for_a_rank_however_its_tables_alternate() -> None:
    """Columns int8, int4, int8, int4 and so on are two blocks to each rank; of one codec they are one block to all ranks."""
    names = {"a": "int8", "b": "int4"}
    columns = [[Column("a", DIM), Column("b", DIM)] * 8, []]
    mixed = PooledLayout(columns, lambda table, link: codecs.get(names[table]), lambda owner, sample: 0, torch.float32)
    side, _ = sequence.owner_side(mixed, 0, [[2] * 16, [3] * 16])
    assert [len(layer.blocks) for layer in side.layers] == [4]
    uniform = PooledLayout(columns, lambda table, link: codecs.get("int8"), lambda owner, sample: 0, torch.float32)
    side, pieces = sequence.owner_side(uniform, 0, [[2] * 16, [3] * 16])
    assert [len(layer.blocks) for layer in side.layers] == [1]
    side, pieces = sequence.sample_side(uniform, 0, [[2] * 16, []])
    assert pieces.wire_order == tuple(range(16))  # so that received vectors are not copied


@pytest.mark.parametrize("counts", [[[1, 2]], [[1], [2, 3]], [[1, 2, 3], [1, 2, 3]]])
def test_counts_must_be_one_for_each_rank_and_column(counts: list[list[int]]) -> None:
    layout = PooledLayout([[Column("a", 4)] * 2] * 2, lambda table, link: codecs.get("int8"), link_of, torch.float32)
    for side in (sequence.owner_side, sequence.sample_side):
        with pytest.raises(WireError, match="not one number of ids for each column of each rank"):
            side(layout, 0, counts)
