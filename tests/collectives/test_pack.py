"""Values to bytes and back by plan, without a process group."""

from __future__ import annotations

import pytest
import torch

from torchrec_qcomm import codecs
from torchrec_qcomm.collectives import RangedBlocks, pack, unpack
from torchrec_qcomm.errors import WireError
from torchrec_qcomm.wire import Column, PooledLayout, ReduceLayout, Side, variable

COLUMNS = [[Column("a", 6), Column("b", 6), Column("a", 6), Column("c", 5)], [Column("c", 5)]]
MIXED = {"a": "int8", "b": "int4", "c": "fp16"}


def sides(names: dict[str, str], dtype: torch.dtype = torch.float32) -> tuple[Side, Side]:
    """The two ends at one rank: its lookup, and its samples' values."""
    layout = PooledLayout(COLUMNS, lambda table, link: codecs.get(names[table]), lambda owner, sample: 0, dtype)
    return layout.owner_side(0, (3, 4)), layout.sample_side(0, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("end", [0, 1])
def test_mixed_codecs_come_back_in_their_own_columns(dtype: torch.dtype, end: int) -> None:
    side = sides(MIXED, dtype)[end]
    values = torch.randn(side.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    buffer = pack(values, side)
    assert (buffer.dtype, buffer.shape) == (torch.uint8, (side.nbytes,))
    back = unpack(buffer, side)
    assert back.dtype == dtype
    at = 0
    for column in COLUMNS[0] + (COLUMNS[1] if end else []):
        codec, part = codecs.get(MIXED[column.table]), values[:, at : at + column.dim]
        alone = codec.decode(codec.encode(part), column.dim, dtype=dtype)
        assert torch.equal(back[:, at : at + column.dim], alone)
        at += column.dim


def test_none_moves_a_lookup_without_a_copy() -> None:
    layout = PooledLayout(
        [[Column("a", 6)] * 2], lambda table, link: codecs.get("none"), lambda owner, sample: 0, torch.float32
    )
    side = layout.owner_side(0, (3,))
    values = torch.randn(side.shape)
    buffer = pack(values, side)
    assert buffer.data_ptr() == values.data_ptr()
    assert unpack(buffer, side).data_ptr() == values.data_ptr()


def test_none_moves_a_variable_batch_without_a_copy() -> None:
    """Flat values of one dim."""
    plan = PooledLayout(
        [[Column("a", 4), Column("b", 4)]] * 2, lambda table, link: codecs.get("none"), lambda *_: 0, torch.float32
    )
    for side in (variable.owner_side(plan, 0, [[3, 0], [1, 2]]), variable.sample_side(plan, 0, [[3, 0], [1, 2]])):
        values = torch.randn(side.shape)
        buffer = pack(values, side)
        assert buffer.data_ptr() == values.data_ptr() == unpack(buffer, side).data_ptr()
        assert torch.equal(unpack(buffer.clone(), side), values)


def test_gradients_that_are_no_plain_tensors() -> None:
    """What autograd hands over: expanded, transposed, a slice at an odd offset."""
    side = sides(MIXED)[1]
    rows, width = side.shape
    plain = torch.randn(rows, width)
    odd = torch.empty(rows * width + 1)[1:].view(rows, width).copy_(plain)
    for values in (plain.t().contiguous().t(), odd, torch.ones(1, 1).expand(rows, width)):
        assert torch.equal(pack(values, side), pack(values.clone(memory_format=torch.contiguous_format), side))


def test_the_wrong_values_are_refused() -> None:
    side, _ = sides(MIXED)
    with pytest.raises(WireError, match=r"got 'torch.float32 \(6, 23\)'; allowed: torch.float32 \(7, 23\)"):
        pack(torch.zeros(6, 23), side)
    with pytest.raises(WireError, match="float16"):
        pack(torch.zeros(7, 23, dtype=torch.float16), side)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_are_summed_after_decoding_and_written_alike(dtype: torch.dtype) -> None:
    columns = [[Column("a", 6), Column("b", 5)]] * 3
    links = {0: {"a": "int8", "b": "none"}, 1: {"a": "int4", "b": "fp8_e4m3"}}
    layout = ReduceLayout(columns, lambda table, link: codecs.get(links[link][table]), lambda o, s: int(o == 2), dtype)
    side = layout.sample_side(0, 4)
    lookups = [torch.randn(4, 11, generator=torch.Generator().manual_seed(i)).to(dtype) for i in range(3)]
    owner_sides = [layout.owner_side(owner, (4, 0, 0)) for owner in range(3)]
    received = torch.cat([pack(lookup, out) for lookup, out in zip(lookups, owner_sides, strict=True)])
    each = [unpack(pack(lookup, out), out).float() for lookup, out in zip(lookups, owner_sides, strict=True)]
    total = unpack(received, side)
    assert total.dtype == dtype
    # The layers alone were rounded to the payload's dtype, the sum only at the end.
    torch.testing.assert_close(
        total.float(),
        sum(each),
        rtol=2**-20 if dtype == torch.float32 else 2**-6,
        atol=1e-6 if dtype == torch.float32 else 2e-2,
    )

    sent = pack(lookups[0], side).split(list(side.splits))
    assert torch.equal(sent[0], sent[1])
    assert torch.equal(sent[0], pack(lookups[0], owner_sides[0]))
    assert torch.equal(sent[2], pack(lookups[0], owner_sides[2]))


RANGED = {
    "a": {"codec": "int8", "range": {"ema": 0.9}},
    "b": {"codec": "int4", "range": {"static": [-9, 9]}},
    "c": "int8",
}
ENDS = {"a": (-1.0, 2.0), "b": (-9.0, 9.0)}


def told(ranged: RangedBlocks) -> list[torch.Tensor]:
    """The heads of `ENDS`."""
    ends = [[ENDS[table] for table in block.tables] for block, _ in ranged]
    return [
        block.codec.range_header(*torch.tensor(columns).unbind(1)) for (block, _), columns in zip(ranged, ends, strict=True)
    ]


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("kind", [PooledLayout, ReduceLayout])
def test_ranges_travel_with_the_rows(kind: type[PooledLayout], flat: bool) -> None:
    """The receiver knows the layout and the bytes alone. Table a has two columns apart from each other, and one head."""
    columns = [[Column("a", 6), Column("b", 6), Column("c", 5), Column("a", 6)]] * 2
    plan = kind(columns, lambda table, link: codecs.get(RANGED[table]), lambda *_: 0, torch.float32)
    if flat:
        side = variable.owner_side(plan, 0, [[2, 0, 3, 1], [1, 2, 0, 0]])
        dims, rows = [6, 6, 5, 6], [[2, 0, 3, 1], [1, 2, 0, 0]]
        widths = [(c.table, d * n) for batch in rows for c, d, n in zip(columns[0], dims, batch, strict=True)]
    else:
        side = plan.owner_side(0, (3, 2))
        widths = [(column.table, column.dim) for column in columns[0]]
    values = torch.randn(side.shape, generator=torch.Generator().manual_seed(1))
    back = unpack(pack(values, side, range_headers_of=told), side)
    for (table, width), got, want in zip(
        widths, back.split([w for _, w in widths], -1), values.split([w for _, w in widths], -1), strict=True
    ):
        codec = codecs.get(RANGED[table])
        if table in ENDS:
            codec = codec.within(codec.range_header(*(torch.tensor(end) for end in ENDS[table])))
        dim = {"a": 6, "b": 6, "c": 5}[table]
        limit = codec.error_bound(want.reshape(-1, dim)).view(want.shape)
        assert ((got - want).abs() <= limit).all(), table
        assert width == 0 or not torch.equal(got, want)


def test_heads_are_asked_for_once_and_never_made_up() -> None:
    side = PooledLayout(
        [[Column("a", 6)]] * 2, lambda table, link: codecs.get(RANGED[table]), lambda a, b: b, torch.float32
    ).owner_side(0, (3, 2))
    asked = []
    pack(torch.zeros(side.shape), side, range_headers_of=lambda ranged: asked.append(len(ranged)) or told(ranged))
    assert asked == [2]
    with pytest.raises(WireError, match=r"codec int8\(range=ema 0.9\) needs the range of each table"):
        pack(torch.zeros(side.shape), side)


@pytest.mark.parametrize("tables", ["ab", "abc", "aba", "aab", "abac", "cab", "bca"])
@pytest.mark.parametrize("end", [0, 1])
def test_tables_of_one_codec_have_a_range_each(tables: str, end: int) -> None:
    """One block holds them all, with heads at even distances or not; a table with two columns has one head."""
    codec, scale = codecs.get(RANGED["a"]), {"a": 1.0, "b": 100.0, "c": 1e-3}
    layout = PooledLayout([[Column(t, 6) for t in tables]] * 2, lambda *_, **__: codec, lambda *_: 0, torch.float32)
    side = layout.owner_side(0, (3, 2)) if end == 0 else layout.sample_side(0, 3)
    assert side.nbytes == (side.shape[0] * side.shape[1]) + 2 * 8 * len(set(tables))
    drawn = torch.rand(side.shape, generator=torch.Generator().manual_seed(2)) * 2 - 1
    columns = torch.tensor([scale[t] for t in tables * (end + 1)]).repeat_interleave(6)

    def range_headers(ranged: RangedBlocks) -> list[torch.Tensor]:
        assert [block.tables for block, _ in ranged] == [tuple(tables)] * 2
        ends = [torch.tensor([scale[t] for t in block.tables]) for block, _ in ranged]
        return [codec.range_header(-each, each) for each in ends]  # type: ignore[attr-defined]

    back = unpack(pack(drawn * columns, side, range_headers_of=range_headers), side)
    assert ((back - drawn * columns).abs() / columns <= 0.51 / 127).all()
