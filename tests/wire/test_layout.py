"""The layout: covered once, cut where both ends expect it, counted as it is cut."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrec_qcomm import codecs
from torchrec_qcomm.wire import Cell, Column, PooledLayout, ReduceLayout, Side

SHARED8 = "int8, one range a table"
SHARED4 = "int4, one range a table"
CODECS = {name: codecs.get(name) for name in ("none", "fp16", "fp8_e4m3", "int8", "int4")}
CODECS |= {SHARED8: codecs.get({"codec": "int8", "range": {"ema": 0.9}})}
CODECS |= {SHARED4: codecs.get({"codec": "int4", "range": {"static": [-1, 1]}})}
NAMES = list(CODECS)
ROW_BYTES = {
    "none": lambda d: 4 * d,
    "fp16": lambda d: 2 * d,
    "fp8_e4m3": lambda d: d + 1,
    "int8": lambda d: d + 8,
    "int4": lambda d: (d + 1) // 2 + 4,
    SHARED8: lambda d: d,
    SHARED4: lambda d: (d + 1) // 2,
}
HEAD_BYTES = {SHARED8: 8, SHARED4: 8}
"""Once for each table and pair of ranks, if any row goes from one to the other."""

columns = st.builds(Column, st.sampled_from("abcd"), st.integers(1, 9))
owners = st.lists(st.lists(columns, max_size=6), min_size=1, max_size=4)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[list[Column]], dict, tuple[int, ...]]:
    owned = draw(owners)
    table_codecs = {(t, link): draw(st.sampled_from(NAMES)) for t in "abcd" for link in (0, 1)}
    sizes = tuple(draw(st.lists(st.integers(0, 5), min_size=len(owned), max_size=len(owned))))
    return owned, table_codecs, sizes


def layout(owned: list[list[Column]], table_codecs: dict) -> PooledLayout[int]:
    """Neighbouring ranks are on one host."""
    return PooledLayout(
        owned,
        lambda table, link: CODECS[table_codecs[table, link]],
        lambda owner, sample: int(owner // 2 != sample // 2),
        torch.float32,
    )


def covered(side: Side) -> tuple[torch.Tensor, torch.Tensor]:
    """How often each value and each byte of a side is touched by its blocks."""
    values, buffer = torch.zeros(side.shape, dtype=torch.int32), torch.zeros(side.nbytes, dtype=torch.int32)
    flat = values.view(-1)
    blocks = [block for layer in side.layers for block in layer.blocks]
    for head in {head for block in blocks for head in block.range_headers}:
        buffer[head : head + 8] += 1
    for block in (block for layer in side.layers for block in layer.blocks):
        row_bytes = block.codec.row_bytes(block.dim, side.dtype)
        for row in range(block.rows):
            for i, offset in enumerate(block.offsets):
                flat[offset + row * block.stride :][: block.dim] += 1
                buffer[block.byte_offset + row * block.byte_stride + i * row_bytes :][:row_bytes] += 1
    return values, buffer


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_blocks_cover_values_and_bytes_once(case: tuple) -> None:
    owned, table_codecs, sizes = case
    plan = layout(owned, table_codecs)
    for rank in range(len(owned)):
        for side in (plan.owner_side(rank, sizes), plan.sample_side(rank, sizes[rank])):
            for touched in covered(side):
                assert (touched == 1).all()


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_what_one_end_sends_the_other_expects(case: tuple) -> None:
    owned, table_codecs, sizes = case
    plan = layout(owned, table_codecs)
    ranks = range(len(owned))
    owner_sides = [plan.owner_side(rank, sizes) for rank in ranks]
    sample_sides = [plan.sample_side(rank, sizes[rank]) for rank in ranks]
    for owner in ranks:
        for sample in ranks:
            link = int(owner // 2 != sample // 2)
            by_hand = sum(ROW_BYTES[table_codecs[c.table, link]](c.dim) for c in owned[owner]) * sizes[sample]
            tables = {c.table for c in owned[owner]} if sizes[sample] else set()
            by_hand += sum(HEAD_BYTES.get(table_codecs[table, link], 0) for table in tables)
            assert owner_sides[owner].splits[sample] == sample_sides[sample].splits[owner] == by_hand
            assert owner_sides[owner].cells[sample] == sample_sides[sample].cells[owner]
            assert sum(cell.wire_bytes for cell in owner_sides[owner].cells[sample].values()) == by_hand


def test_one_codec_and_dim_is_one_block() -> None:
    """The whole lookup is encoded by one call, whatever the number of destinations."""
    owned = [[Column("a", 8), Column("b", 8)]] * 3
    side = layout(owned, {(t, link): "int8" for t in "abcd" for link in (0, 1)}).owner_side(0, (5, 4, 0))
    ((block,),) = (layer.blocks for layer in side.layers)
    assert (block.rows, block.offsets, block.adjacent) == (9, (0, 8), True)


def test_mixed_codecs_are_one_block_a_codec() -> None:
    """Not one a table: columns of one codec stand together on the wire, also where other tables lie between them."""
    owned = [[Column("a", 8), Column("b", 8), Column("c", 8), Column("a", 8)]]
    specs = {(t, link): "int4" if t == "b" else "int8" for t in "abcd" for link in (0, 1)}
    side = layout(owned, specs).owner_side(0, (5,))
    assert [(b.codec.spec.name, b.offsets, b.adjacent) for b in side.layers[0].blocks] == [
        ("int8", (0, 16, 24), False),
        ("int4", (8,), True),
    ]
    assert side.cells[0]["a"].values == 2 * 8 * 5


def test_a_reduce_scatter_has_a_layer_for_every_owner() -> None:
    """Values are covered once by each, bytes once by all; owners on one link are sent the same bytes, encoded once."""
    columns = [Column("a", 8), Column("b", 5), Column("a", 8)]
    specs = {
        ("a", 0): "int8",
        ("a", 1): "int4",
        ("b", 0): "fp16",
        ("b", 1): "none",
        **{(t, n): "none" for t in "cd" for n in (0, 1)},
    }
    plan = ReduceLayout(
        [columns] * 4,
        lambda table, link: codecs.get(specs[table, link]),
        lambda owner, sample: int(owner // 2 != sample // 2),
        torch.float32,
    )
    samples = plan.sample_side(2, 3)
    values, buffer = covered(samples)
    assert (values == 4).all()
    assert (buffer == 1).all()
    assert samples.shape == (3, 21)
    assert [layer.twin for layer in samples.layers] == [None, 0, None, 2]
    for owner in range(4):
        assert plan.owner_side(owner, (1, 2, 3, 4)).splits[2] == samples.splits[owner] == samples.layers[owner].nbytes


def test_heads_stand_once_before_the_rows_of_a_share() -> None:
    """Table a has two columns and one range, and b none of its own; nothing is sent where there are no samples."""
    owned = [[Column("a", 4), Column("b", 3), Column("a", 4)], []]
    specs = {(t, link): SHARED8 if t == "a" else "fp16" for t in "abcd" for link in (0, 1)}
    side = layout(owned, specs).owner_side(0, (2, 3))
    assert side.splits == (8 + 2 * (4 + 4 + 6), 8 + 3 * (4 + 4 + 6))
    assert [(b.byte_offset, b.range_headers, b.tables) for b in side.layers[0].blocks] == [
        (8, (0, 0), ("a", "a")),
        (16, (), ()),
        (36 + 8, (36, 36), ("a", "a")),
        (36 + 16, (), ()),
    ]
    assert side.cells[1] == {"a": Cell(3 * 8, 8 + 3 * 8), "b": Cell(3 * 3, 3 * 6)}
    assert layout(owned, specs).owner_side(0, (0, 3)).splits == (0, 50)


def test_sizes_do_not_wrap() -> None:
    """65,536 samples of 26 tables of 1,280 values: more bytes than an int32 counts, and none allocated here."""
    owned = [[Column(f"t{i}", 1280) for i in range(26)]]
    plan = PooledLayout(owned, lambda table, link: codecs.get("none"), lambda owner, sample: 0, torch.float32)
    assert plan.owner_side(0, (65536,)).splits == (65536 * 26 * 1280 * 4,)
