"""The layout with a batch size for every feature: covered once, cut alike at both ends, counted as it is cut."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.test_layout import CODECS, HEAD_BYTES, NAMES, ROW_BYTES, columns, covered, owners
from torchrec_qcomm import codecs
from torchrec_qcomm.errors import WireError
from torchrec_qcomm.wire import Cell, Column, PooledLayout, ReduceLayout, variable

TABLES = "abcd"


@st.composite
def layouts(draw: st.DrawFn) -> tuple[PooledLayout[int], dict, list[list[list[int]]]]:
    """A layout, its codecs, and how many samples each rank has of each owner's columns: ``[sample][owner][column]``.

    Neighbouring ranks are on one host. Of a `ReduceLayout`, a rank has the same samples for every owner.
    """
    reduces = draw(st.booleans())
    owned = [draw(st.lists(columns, min_size=1, max_size=6))] * draw(st.integers(1, 4)) if reduces else draw(owners)
    names = {(t, link): draw(st.sampled_from(NAMES)) for t in TABLES for link in (0, 1)}
    sizes = []
    for _ in owned:
        each = [draw(st.lists(st.integers(0, 4), min_size=len(c), max_size=len(c))) for c in owned]
        sizes.append([each[0]] * len(owned) if reduces else each)
    kind = ReduceLayout if reduces else PooledLayout
    return kind(owned, lambda table, link: CODECS[names[table, link]], link_of, torch.float32), names, sizes


def link_of(owner: int, sample: int) -> int:
    return int(owner // 2 != sample // 2)


def to_owner(sizes: list[list[list[int]]], owner: int) -> list[list[int]]:
    return [mine[owner] for mine in sizes]


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_blocks_cover_values_and_bytes_once(case: tuple) -> None:
    plan, _, sizes = case
    for rank in range(len(sizes)):
        samples = variable.sample_side(plan, rank, sizes[rank])
        for side in (variable.owner_side(plan, rank, to_owner(sizes, rank)), samples):
            values, buffer = covered(side)
            assert (values == len(side.layers)).all()
            assert (buffer == 1).all()
            assert sum(layer.nbytes for layer in side.layers) == side.nbytes
        assert len(samples.layers) == (len(sizes) if isinstance(plan, ReduceLayout) else 1)


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_what_one_end_sends_the_other_expects(case: tuple) -> None:
    plan, names, sizes = case
    ranks = range(len(sizes))
    owner_sides = [variable.owner_side(plan, rank, to_owner(sizes, rank)) for rank in ranks]
    sample_sides = [variable.sample_side(plan, rank, sizes[rank]) for rank in ranks]
    for owner in ranks:
        for sample in ranks:
            by_hand: dict[str, Cell] = {}
            for column, rows in zip(plan.columns[owner], sizes[sample][owner], strict=True):
                row = ROW_BYTES[names[column.table, link_of(owner, sample)]](column.dim)
                head = (
                    0
                    if by_hand.get(column.table, Cell()).values
                    else HEAD_BYTES.get(names[column.table, link_of(owner, sample)], 0)
                )
                cell = Cell(rows * column.dim, rows * row + (head if rows else 0))
                by_hand[column.table] = by_hand.get(column.table, Cell()) + cell
            assert owner_sides[owner].cells[sample] == sample_sides[sample].cells[owner] == by_hand
            total = sum(cell.wire_bytes for cell in by_hand.values())
            assert owner_sides[owner].splits[sample] == sample_sides[sample].splits[owner] == total


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_both_ends_cut_the_same_bytes_alike(case: tuple) -> None:
    """What the owner encodes with a codec at a byte, the samples' end decodes with it there: vector by vector."""
    plan, _, sizes = case

    def vectors(side: object, peer: int) -> list[tuple[int, str, int]]:
        """``(byte within the split, codec, dim)`` of what goes to or comes from a peer."""
        first = sum(side.splits[:peer])
        found = [
            (block.byte_offset + row * block.byte_stride - first, block.codec.spec.name, block.dim)
            for layer in side.layers
            for block in layer.blocks
            for row in range(block.rows)
        ]
        return [vector for vector in found if 0 <= vector[0] < side.splits[peer]]

    for owner in range(len(sizes)):
        out = variable.owner_side(plan, owner, to_owner(sizes, owner))
        for sample in range(len(sizes)):
            assert vectors(out, sample) == vectors(variable.sample_side(plan, sample, sizes[sample]), owner)


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_twins_are_earlier_layers_of_the_same_bytes(case: tuple) -> None:
    plan, _, sizes = case
    for rank in range(len(sizes)):
        layers = variable.sample_side(plan, rank, sizes[rank]).layers
        for i, layer in enumerate(layers):
            if layer.twin is not None:
                first = layers[layer.twin]
                assert layer.twin < i
                assert first.twin is None
                assert [(b.codec, b.dim, b.rows, b.offsets, b.byte_offset - layer.start) for b in layer.blocks] == [
                    (b.codec, b.dim, b.rows, b.offsets, b.byte_offset - first.start) for b in first.blocks
                ]
        links = {link_of(owner, rank) for owner in range(len(sizes))}
        assert sum(layer.twin is None for layer in layers) == (len(links) if isinstance(plan, ReduceLayout) else 1)


def uniform(name: str, owned: list[list[Column]]) -> PooledLayout[int]:
    return PooledLayout(owned, lambda table, link: codecs.get(name), link_of, torch.float32)


def test_one_codec_and_dim_is_one_block() -> None:
    """Across features, ranks and links; also where a feature between them has no row."""
    plan = uniform("int8", [[Column("a", 8), Column("b", 8)]] * 3)
    for side, rows in (
        (variable.owner_side(plan, 0, [[3, 0], [0, 2], [4, 1]]), 10),
        (variable.sample_side(plan, 0, [[0, 5], [1, 2], [0, 0]]), 8),
    ):
        ((block,),) = (layer.blocks for layer in side.layers)
        assert (block.rows, block.offsets, block.stride, block.byte_stride) == (rows, (0,), 8, 16)
        assert side.shape == (8 * rows,)


def test_neighbours_of_one_codec_are_one_block() -> None:
    specs = {"a": "int8", "b": "int8", "c": "int4"}
    plan = PooledLayout(
        [[Column("a", 8), Column("b", 8), Column("c", 8)], []],
        lambda table, link: codecs.get(specs[table]),
        link_of,
        torch.float32,
    )
    side = variable.owner_side(plan, 0, [[1, 2, 3], [4, 5, 6]])
    assert [(b.codec.spec.name, b.rows, b.offsets) for b in side.layers[0].blocks] == [
        ("int8", 3, (0,)),
        ("int4", 3, (24,)),
        ("int8", 9, (48,)),
        ("int4", 6, (120,)),
    ]


def test_batch_sizes_that_do_not_fit_the_columns_are_refused() -> None:
    plan = uniform("none", [[Column("a", 8), Column("b", 8)], [], [Column("c", 8)]])
    assert variable.by_owner(plan, [3, 4, 5]) == [[3, 4], [], [5]]
    for call in (
        lambda: variable.by_owner(plan, [3, 4]),
        lambda: variable.by_owner(plan, [3, 4, 5, 6]),
        lambda: variable.owner_side(plan, 0, [[1, 1], [1, 1]]),
        lambda: variable.owner_side(plan, 0, [[1, 1], [1], [1, 1]]),
        lambda: variable.sample_side(plan, 0, [[1, 1], [1]]),
    ):
        with pytest.raises(WireError, match="not one batch size for each column of each rank; got"):
            call()
