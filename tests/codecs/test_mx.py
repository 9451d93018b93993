"""Microscaling: scales by block, OCP's own rule, FBGEMM's MX4, and stochastic rounding without bias."""

from __future__ import annotations

import pytest
import torch
from fbgemm_gpu.quantize_utils import fp32_to_mx4, mx4_to_fp32
from fbgemm_gpu.triton.common import RoundingMode

from tests.codecs.by_hand.tables import E2M1, E4M3, mx, packed
from tests.codecs.checks.cases import FLT_MAX, NOISE, check_contract, gaussian
from tests.codecs.checks.unbiased import check_unbiased
from torchrec_qcomm import codecs
from torchrec_qcomm.codecs.parts.memory import Scratch
from torchrec_qcomm.codecs.parts.noise import Draw
from torchrec_qcomm.errors import CodecError

FP4 = codecs.get("mxfp4")
FP4_FLOOR = codecs.get({"codec": "mxfp4", "scale_rule": "floor"})


def as_fbgemm(data: torch.Tensor) -> torch.Tensor:
    """Our rows of whole blocks, ``codes | scales``, with each scale behind its 16 bytes of codes."""
    blocks = data.shape[-1] // 17
    codes, scales = data[:, : 16 * blocks].view(-1, blocks, 16), data[:, 16 * blocks :].unsqueeze(-1)
    return torch.cat([codes, scales], dim=-1).flatten(1)


@pytest.mark.parametrize("codec", [FP4, FP4_FLOOR], ids=str)
def test_fbgemm_decodes_the_same_values(codec: codecs.Codec) -> None:
    values = gaussian(200, 96) * torch.logspace(-30, 30, 200).unsqueeze(1)
    values[:, 32:64] *= 1e-3
    data = codec.encode(values)
    theirs = mx4_to_fp32(as_fbgemm(data).contiguous())
    assert torch.equal(theirs.view(200, 96), codec.decode(data, 96))


def test_the_floor_rule_writes_fbgemms_bytes() -> None:
    """But for ties, of which there are none here (FBGEMM rounds those away from zero), and zero rows have its scale too."""
    values = gaussian(300, 64) * torch.logspace(-30, 30, 300).unsqueeze(1)
    values[7] = 0
    theirs = fp32_to_mx4(values, rounding_mode=RoundingMode.floor).view(300, -1)
    assert torch.equal(as_fbgemm(FP4_FLOOR.encode(values)), theirs)


def test_rounding_up_clips_nothing_and_floor_does() -> None:
    values = torch.tensor([[7.9, 0.4], [6.1, 5.9], [-7.0, 1.0]])
    clipped = FP4_FLOOR.decode(FP4_FLOOR.encode(values), 2)
    assert clipped.abs().amax(-1).tolist() == [6.0, 6.0, 6.0]
    assert FP4.decode(FP4.encode(values), 2)[:, 0].tolist() == [8.0, 6.0, -8.0]  # a tie, between 3 and 4 times 2
    assert FP4_FLOOR.error_bound(values)[0, 0] == pytest.approx(1.9, rel=1e-6)


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8"])
def test_each_block_has_a_scale_of_its_own(name: str) -> None:
    codec = codecs.get(name)
    for dim in (33, 64, 71, 128):
        scale = torch.exp2(30.0 * (torch.arange(dim) // 32))
        values = gaussian(50, dim, seed=dim)
        assert torch.equal(codec.decode(codec.encode(values * scale), dim), codec.decode(codec.encode(values), dim) * scale)
        alone = codec.decode(codec.encode(values[:, dim // 32 * 32 :]), dim % 32) if dim % 32 else values[:, :0]
        assert torch.equal(codec.decode(codec.encode(values), dim)[:, dim // 32 * 32 :], alone)


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8"])
@pytest.mark.parametrize("rule", ["up", "floor"])
def test_a_fault_spoils_all_blocks_of_its_row_and_zeros_have_byte_0(name: str, rule: str) -> None:
    codec = codecs.get({"codec": name, "scale_rule": rule})
    values = gaussian(3, 80)
    values[1, 70] = torch.inf
    values[2, 32:64] = 0
    data = codec.encode(values)
    assert data[1, -3:].tolist() == [255] * 3
    assert data[2, -2] == 0
    decoded = codec.decode(data, 80)
    assert decoded.isnan().all(-1).tolist() == [False, True, False]
    assert (decoded[2, 32:64] == 0).all()


@pytest.mark.parametrize(("name", "largest"), [("mxfp4", 6 * 2.0**125), ("mxfp8", 448 * 2.0**119)])
def test_the_ends_of_the_range(name: str, largest: float) -> None:
    codec = codecs.get(name)
    top = torch.tensor([[FLT_MAX, -FLT_MAX, largest, 1.0]])
    assert codec.decode(codec.encode(top), 4).tolist() == [[largest, -largest, largest, 0.0]]
    for amplitude in (1e-45, 1e-42, 1e-38, 1e-36, 1e38):
        check_contract(codec, gaussian(50, 40).clamp(-3, 3) * amplitude, f"amplitude {amplitude}")


def test_every_code_decodes_to_its_value() -> None:
    codes = torch.arange(0, 256, dtype=torch.uint8)  # as pairs of FP4 codes
    signed = torch.tensor([*E2M1, *(-v for v in E2M1)])
    pairs = torch.stack([signed[codes.int() & 15], signed[codes.int() >> 4]], dim=-1).flatten()
    scales = torch.tensor([1, 64, 127, 128, 200, 252] * 3, dtype=torch.uint8)[:16]
    factor = torch.exp2(scales.double() - 127).repeat_interleave(32)
    assert torch.equal(FP4.decode(torch.cat([codes, scales]), 512).double(), pairs.double() * factor)
    eight = torch.tensor([c for c in range(256) if c & 127 != 127][:224], dtype=torch.uint8)
    values = torch.tensor([*E4M3, *(-v for v in E4M3)])[:224]
    scales = torch.tensor([1, 64, 127, 128, 200, 246, 2], dtype=torch.uint8)
    factor = torch.exp2(scales.double() - 127).repeat_interleave(32)
    assert torch.equal(codecs.get("mxfp8").decode(torch.cat([eight, scales]), 224).double(), values.double() * factor)


@pytest.mark.parametrize(("name", "table", "sign"), [("mxfp4", E2M1, 8), ("mxfp8", E4M3, 128)])
def test_stochastic_bytes_equal_the_oracle(name: str, table: tuple[float, ...], sign: int) -> None:
    codec = codecs.get({"codec": name, "rounding": "stochastic"})
    values = gaussian(40, 71) * torch.exp2(torch.arange(40.0) - 20).unsqueeze(1)
    noise = Draw(NOISE, values.device).uniform(tuple(values.shape), Scratch(values.device))
    for row, uniform, found in zip(values.tolist(), noise.tolist(), codec.encode(values, noise=NOISE).tolist(), strict=True):
        codes, scales = mx(row, table, sign, uniform)
        expected = packed([*codes, 0], 4) if name == "mxfp4" else bytes(codes)
        assert bytes(found) == expected + scales


@pytest.mark.parametrize(("name", "mantissa", "smallest", "largest"), [("mxfp4", 1, 0, 6.0), ("mxfp8", 3, -6, 448.0)])
def test_stochastic_rounding_is_unbiased(name: str, mantissa: int, smallest: int, largest: float) -> None:
    codec = codecs.get({"codec": name, "rounding": "stochastic"})

    def variance(row: torch.Tensor) -> torch.Tensor:
        found = []
        for block in row.split(32):
            scale = torch.exp2(torch.ceil(torch.log2(block.abs().max() / largest)))
            power = torch.exp2(torch.floor(torch.log2(block.abs() / scale)).clamp(min=smallest))
            step = power * scale * 2.0**-mantissa
            place = block.abs() / step % 1
            found.append(step**2 * place * (1 - place))
        return torch.cat(found)

    values = gaussian(1, 45, seed=4)[0]
    values[3], values[40] = 0.5, 0.0  # exact: 0.5 is a code at any of the scales here
    measured = check_unbiased(codec, values, variance)
    assert (measured <= codec.error_bound(values).double() ** 2 / 4 * 1.1).all()  # at most a quarter of a step squared
    plain = codecs.get(name)
    assert ((plain.decode(plain.encode(values), 45) - values).abs() <= codec.error_bound(values) / 2 * 1.0001).all()


@pytest.mark.parametrize(
    ("parameter", "allowed"),
    [({"rounding": "up"}, "nearest, stochastic"), ({"scale_rule": "ceil"}, "floor, up"), ({"rounding": None}, "nearest")],
)
def test_unknown_parameters_are_refused(parameter: dict[str, object], allowed: str) -> None:
    for name in ("mxfp4", "mxfp8"):
        with pytest.raises(
            CodecError, match=f"codec {name}, {next(iter(parameter))}: unknown value; got .*; allowed: {allowed}"
        ):
            codecs.get({"codec": name, **parameter})
