"""The layout of a first hop, where a rank takes the batches of several: covered once, cut alike at both ends."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.test_layout import CODECS, NAMES, columns, covered
from torchrec_qcomm import codecs
from torchrec_qcomm.collectives import pack, unpack
from torchrec_qcomm.wire import Column, ReduceLayout, Side, variable


@st.composite
def layouts(draw: st.DrawFn) -> tuple[ReduceLayout[int], list[list[int]]]:
    """A layout over ranks that each take some batches of a lookup, and each batch's rows of each column."""
    ranks, owned = draw(st.integers(1, 3)), draw(st.lists(columns, min_size=1, max_size=4))
    takers = draw(st.permutations([rank for rank in range(ranks) for _ in range(draw(st.integers(1, 3)))]))
    names = {(t, link): draw(st.sampled_from(NAMES)) for t in "abcd" for link in (0, 1)}
    layout: ReduceLayout[int] = ReduceLayout(
        [owned] * ranks, lambda table, link: CODECS[names[table, link]], lambda a, b: int(a == b), torch.float32, takers
    )
    sizes = [draw(st.lists(st.integers(0, 4), min_size=len(owned), max_size=len(owned))) for _ in takers]
    return layout, sizes


def sides(layout: ReduceLayout[int], sizes: list[list[int]], flat: bool) -> tuple[list[Side], list[Side]]:
    """Owners' and samples' ends, of variable batches or of plain ones with the rows of the first column."""
    ranks = range(len(layout.columns))
    if flat:
        mine = [[list(chain(*batches))] * len(ranks) for batches in layout.dealt(sizes)]
        return (
            [variable.owner_side(layout, rank, sizes) for rank in ranks],
            [variable.sample_side(layout, rank, mine[rank]) for rank in ranks],
        )
    plain = tuple(rows[0] for rows in sizes)
    samples = [sum(batches) for batches in layout.dealt(plain)]
    return (
        [layout.owner_side(rank, plain) for rank in ranks],
        [layout.sample_side(rank, samples[rank]) for rank in ranks],
    )


@given(layouts(), st.booleans())
@settings(max_examples=80, deadline=None)
def test_both_ends_have_all_values_and_the_same_bytes(case: tuple, flat: bool) -> None:
    owners, samples = sides(*case, flat)
    for rank, (out, into) in enumerate(zip(owners, samples, strict=True)):
        for side in (out, into):
            values, buffer = covered(side)
            assert (values == len(side.layers)).all()
            assert (buffer == 1).all()
        assert [side.splits[rank] for side in samples] == list(out.splits)
        assert [side.cells[rank] for side in samples] == list(out.cells)


@given(layouts(), st.booleans())
@settings(max_examples=80, deadline=None)
def test_a_rank_receives_the_batches_that_it_takes_in_order(case: tuple, flat: bool) -> None:
    """By way of the bytes: what each owner packs for a rank, unpacked there, is the sum of all owners' batches for it."""
    layout, sizes = case
    layout.codec_of = lambda table, link: codecs.get("none")
    owners, samples = sides(layout, sizes, flat)
    lookups = [torch.randint(-8, 8, side.shape).float() for side in owners]
    packed = [pack(lookup, side).split(side.splits) for lookup, side in zip(lookups, owners, strict=True)]
    width = [column.dim for column in layout.columns[0]]
    counts = [sum(n * d for n, d in zip(rows, width, strict=True)) if flat else rows[0] for rows in sizes]
    for rank, side in enumerate(samples):
        got = unpack(torch.cat([pieces[rank] for pieces in packed]), side)
        want = sum(torch.cat(layout.dealt(lookup.split(counts))[rank]) for lookup in lookups)
        assert torch.equal(got, want)


def test_neighbours_for_one_rank_are_one_block_and_others_are_not() -> None:
    def blocks(takers: list[int]) -> int:
        layout: ReduceLayout[int] = ReduceLayout(
            [[Column("a", 8)]] * 2, lambda table, link: codecs.get("int8"), lambda a, b: 0, torch.float32, takers
        )
        return len(layout.owner_side(0, (3, 2, 4, 1)).layers[0].blocks)

    assert blocks([0, 0, 1, 1]) == 1
    assert blocks([0, 1, 0, 1]) == 4


def test_each_batch_has_a_taker() -> None:
    layout: ReduceLayout[int] = ReduceLayout(
        [[Column("a", 8)]] * 2, lambda table, link: codecs.get("int8"), lambda a, b: 0, torch.float32, [0, 1, 0, 1]
    )
    with pytest.raises(ValueError, match="shorter"):
        layout.owner_side(0, (3, 2, 4))
