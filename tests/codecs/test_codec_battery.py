"""The battery: what every codec with every backend must do, whatever its arithmetic."""

from __future__ import annotations

import pytest
import torch

from tests.codecs.checks.cases import (
    ALL,
    CASES,
    DIMS,
    DTYPES,
    FLT_MAX,
    NOISE,
    RAW,
    ROW_BOUND,
    ROW_ERROR,
    as_dtype,
    case_id,
    check_contract,
    finite_classes,
    gaussian,
    has_fp16_range,
    spoilt,
    takes,
)
from torchrec_qcomm import codecs
from torchrec_qcomm.codecs import Codec
from torchrec_qcomm.errors import CodecError, WireError


@pytest.fixture(params=CASES, ids=case_id)
def codec(request: pytest.FixtureRequest) -> Codec:
    return codecs.get(request.param[0], request.param[1])


@pytest.fixture(params=ALL, ids=case_id)
def any_codec(request: pytest.FixtureRequest) -> Codec:
    """Stochastic ones, too, which the other tests have no use for: their rows depend on where they stand."""
    return codecs.get(request.param[0], request.param[1])


@pytest.mark.parametrize("dim", DIMS)
def test_every_class_of_finite_values_stays_within_the_bound(any_codec: Codec, dim: int) -> None:
    for name, values in finite_classes(dim).items():
        for dtype in DTYPES:
            if takes(any_codec, dtype):
                check_contract(any_codec, as_dtype(values, dtype), f"{name}, dim {dim}, {dtype}")


@pytest.mark.parametrize("dim", DIMS)
def test_a_fault_shows_in_its_row_and_in_no_other(any_codec: Codec, dim: int) -> None:
    clean = any_codec.encode(gaussian(4, dim), noise=NOISE)
    for name, values in spoilt(dim).items():
        check_contract(any_codec, values, f"{name}, dim {dim}")
        others = torch.tensor([0, 2, 3])
        assert torch.equal(any_codec.encode(values, noise=NOISE)[others], clean[others]), f"{name} reached another row"
        if takes(any_codec, torch.float16):
            check_contract(any_codec, values.half(), f"{name}, dim {dim}, half")


@pytest.mark.parametrize("rows", [0, 1, 7, 3000])
def test_any_number_of_rows(codec: Codec, rows: int) -> None:
    """3000 rows of 257 values are two chunks with a rest."""
    for dim in (1, 33, 257):
        values = gaussian(rows, dim, seed=rows)
        decoded = check_contract(codec, values, f"{rows} rows of {dim}")
        if rows == 3000:  # a row is coded alone, so the place in a chunk does not matter
            assert torch.equal(decoded[-5:], codec.decode(codec.encode(values[-5:]), dim))


def test_zero_rows_come_back_as_exact_zeros(codec: Codec) -> None:
    for dim in DIMS:
        for zero in (0.0, -0.0):
            values = gaussian(3, dim)
            values[1] = zero
            assert (codec.decode(codec.encode(values), dim)[1] == 0).all()


def test_leading_dimensions_are_rows(codec: Codec) -> None:
    values = gaussian(60, 20)
    flat = codec.encode(values)
    for shape in ((3, 20, 20), (3, 4, 5, 20), (60, 1, 20), (1, 60, 20)):
        data = codec.encode(values.view(shape))
        assert torch.equal(data, flat.view(*shape[:-1], -1))
        assert torch.equal(codec.decode(data, 20), codec.decode(flat, 20).view(shape))
    assert torch.equal(codec.encode(values[7]), flat[7])
    assert torch.equal(codec.decode(flat[7], 20), codec.decode(flat, 20)[7])
    assert codec.encode(torch.empty(4, 0, 20)).shape == (4, 0, codec.row_bytes(20))
    assert codec.decode(flat.view(3, 20, -1)[:0, :5], 20).shape == (0, 5, 20)


@pytest.mark.parametrize("dim", [1, 5, 20, 128])
def test_strides_of_the_input_do_not_matter(codec: Codec, dim: int) -> None:
    values = gaussian(6, 13, dim)
    data = codec.encode(values)
    wide = torch.full((6, 2, 15, dim + 3), torch.nan)
    wide[:, 1, 2:, 1:-2] = values
    columns = values.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    offset = torch.cat([torch.zeros(1), values.flatten()])[1:].view(values.shape)
    for name, same in {"slice": wide[:, 1, 2:, 1:-2], "transposed": columns, "offset": offset}.items():
        assert torch.equal(codec.encode(same), data), name
    swapped = values.transpose(0, 1)
    assert torch.equal(codec.encode(swapped), data.transpose(0, 1))
    repeated = values[:1].expand(4, 13, dim)
    assert torch.equal(codec.encode(repeated), data[:1].expand(4, 13, -1))


@pytest.mark.parametrize("dim", [1, 5, 20, 128])
@pytest.mark.parametrize("start", [0, 1, 2, 3, 7])
def test_out_is_written_where_it_lies_and_nowhere_else(codec: Codec, dim: int, start: int) -> None:
    values = gaussian(6, 13, dim)
    data, width = codec.encode(values), codec.row_bytes(dim)
    for gap in (0, 1, 6):
        buffer = torch.full((6, start + 13 * width + gap), 0xAB, dtype=torch.uint8)
        rows = buffer[:, start : start + 13 * width].view(6, 13, width)
        assert codec.encode(values, out=rows) is rows
        assert torch.equal(rows, data)
        assert (buffer[:, :start] == 0xAB).all()
        assert (buffer[:, start + 13 * width :] == 0xAB).all()

        result = torch.full((6, start + 13 * dim + gap), torch.nan)  # dirty: NaN must not survive in it
        target = result[:, start : start + 13 * dim].view(6, 13, dim)
        assert codec.decode(rows, dim, out=target) is target
        assert torch.equal(target, codec.decode(data, dim))
        assert torch.equal(codec.decode(rows, dim), target)
        assert result[:, :start].isnan().all()
        assert result[:, start + 13 * dim :].isnan().all()


def test_sixteen_bit_results_into_out(codec: Codec) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        values = gaussian(5, 33).to(dtype)
        if not takes(codec, dtype):
            continue
        data = codec.encode(values)
        out = torch.full((5, 40), torch.nan, dtype=dtype)[:, 3:36]
        assert codec.decode(data, 33, out=out) is out
        assert torch.equal(out, codec.decode(data, 33, dtype=dtype))


def test_a_level_above_the_largest_fp16_does_not_become_infinite(codec: Codec) -> None:
    if takes(codec, torch.float16):
        values = torch.tensor([[0.0, 65504.0, -65504.0], [65504.0, 65504.0, 1.0], [-65504.0, -65504.0, -65504.0]]).half()
        assert codec.decode(codec.encode(values), 3, dtype=torch.float16).isfinite().all()


def test_bytes_do_not_depend_on_the_memory_that_was_there_before(codec: Codec) -> None:
    """Padding is zeroed and scratch is never read: the same bytes over ones, zeros and NaN."""
    for dim in (1, 5, 31):
        values = gaussian(9, dim)
        found = [codec.encode(values, out=torch.full((9, codec.row_bytes(dim)), fill, dtype=torch.uint8)) for fill in (0, 255)]
        torch.empty(1 << 20).fill_(torch.nan)
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], codec.encode(values))


def test_gradients_and_inputs_are_left_alone(codec: Codec) -> None:
    values = gaussian(8, 32).requires_grad_()
    before = values.detach().clone()
    data = codec.encode(values)
    assert not data.requires_grad
    kept = data.clone()
    assert not codec.decode(data, 32).requires_grad
    assert torch.equal(values, before)
    assert torch.equal(data, kept)


@pytest.mark.parametrize("amplitude", [1e-30, 1e-20, 1e-12, 1e-7, 1e-3, 1.0, 1e4, 1e8, 1e20, 1e30])
def test_the_relative_error_does_not_depend_on_the_amplitude(codec: Codec, amplitude: float) -> None:
    if has_fp16_range(codec):
        pytest.skip("fp16's range is too small; its loss scale has a test of its own")
    values = gaussian(50, 64)
    ones = (codec.decode(codec.encode(values), 64) - values).norm(dim=-1) / values.norm(dim=-1)
    scaled = values * amplitude
    error = (codec.decode(codec.encode(scaled), 64).double() - scaled.double()).norm(dim=-1) / scaled.double().norm(dim=-1)
    assert error.max() <= 1.7 * ones.max()
    limit = ROW_BOUND.get(codec.spec.name, 0.3)
    assert (codec.error_bound(scaled).double() <= limit * scaled.double().abs().amax(-1, keepdim=True)).all()


def test_rows_of_any_size_live_side_by_side(codec: Codec) -> None:
    """A row 2**-20 of the payload's largest value keeps its own relative bound: scales never span rows."""
    if codec.spec.name == "fp16":
        pytest.skip("fp16 carries no scale")
    values = gaussian(21, 48) * torch.exp2(-torch.arange(21.0)).unsqueeze(1)
    together, alone = codec.encode(values), torch.cat([codec.encode(row.unsqueeze(0)) for row in values])
    assert torch.equal(together, alone)
    error = (codec.decode(together, 48) - values).norm(dim=-1) / values.norm(dim=-1)
    assert error.max() < ROW_ERROR.get(codec.spec.name, 0.13)


def test_a_lossy_codec_is_lossy(codec: Codec) -> None:
    """Within the bound *and* different from FP32: the codec is really there."""
    values = gaussian(50, 64)
    assert torch.equal(codec.decode(codec.encode(values), 64), values) == (codec.spec.name in RAW)
    assert (codec.error_bound(values).max() == 0) == (codec.spec.name in RAW)


def test_the_largest_values_saturate(codec: Codec) -> None:
    values = torch.tensor([[FLT_MAX, -FLT_MAX, 1.0], [FLT_MAX, FLT_MAX, FLT_MAX], [-FLT_MAX, -FLT_MAX, -FLT_MAX]])
    decoded = codec.decode(codec.encode(values), 3)
    assert decoded.isfinite().all()
    big = values.abs() == FLT_MAX
    assert (decoded[big].sign() == values[big].sign()).all()


def test_wrong_tensors_are_refused(codec: Codec) -> None:
    values = gaussian(4, 5)
    data = codec.encode(values)
    with pytest.raises(CodecError, match=r"unsupported dtype; got 'torch.float64'"):
        codec.encode(values.double())
    with pytest.raises(CodecError, match="unsupported dtype"):
        codec.check_payload(torch.int64)
    with pytest.raises(WireError, match="at least one value"):
        codec.encode(torch.empty(3, 0))
    with pytest.raises(WireError, match="at least one value"):
        codec.encode(torch.tensor(1.0))
    with pytest.raises(WireError, match=r"encode, out: wrong shape; got \[4, \d+\]; allowed: \[4, \d+\]"):
        codec.encode(values, out=torch.empty(4, data.shape[1] + 1, dtype=torch.uint8))
    with pytest.raises(WireError, match="encode, out: wrong dtype"):
        codec.encode(values, out=torch.empty(data.shape, dtype=torch.int8))
    with pytest.raises(WireError, match="encode, out: the last dimension must be contiguous"):
        codec.encode(values, out=torch.empty(data.shape[::-1], dtype=torch.uint8).t())
    with pytest.raises(WireError, match="decode, data: wrong shape"):
        codec.decode(data[:, 1:], 5)
    with pytest.raises(WireError, match="decode, data: wrong dtype"):
        codec.decode(data.view(torch.int8), 5)
    with pytest.raises(WireError, match="decode, data: the last dimension must be contiguous"):
        codec.decode(data.t().contiguous().t(), 5)
    with pytest.raises(WireError, match="decode, out: wrong shape"):
        codec.decode(data, 5, out=torch.empty(5, 4))
    with pytest.raises((WireError, CodecError), match="dtype"):
        codec.decode(data, 5, out=torch.empty(4, 5, dtype=torch.int32))
    with pytest.raises(WireError, match="at least one value"):
        codec.row_bytes(0)


def test_the_protocol_and_the_spec(codec: Codec) -> None:
    assert isinstance(codec, Codec)
    assert codecs.get(codec.spec).spec == codec.spec
    assert hash(codec) == hash(codecs.get(codec.spec, "fbgemm" if "Fbgemm" in type(codec).__name__ else "reference"))
    for dim in DIMS:
        assert codec.encode(torch.zeros(1, dim)).shape[1] == codec.row_bytes(dim)
