"""Every lossy codec against a second implementation: exact rational arithmetic in plain Python, a few lines each."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
import torch

from tests.codecs.by_hand import signs, tables, uniform
from tests.codecs.checks.cases import NOISE, gaussian
from torchrec_qcomm import codecs
from torchrec_qcomm.codecs.parts.memory import Scratch
from torchrec_qcomm.codecs.parts.noise import Draw

# Those of stochastic codecs take the noise as well: a number in [0, 1) for each value.
ORACLES: dict[str, Callable[..., bytes]] = {
    **uniform.ORACLES,
    **tables.ORACLES,
    **signs.ORACLES,
}


def test_every_lossy_codec_has_an_oracle() -> None:
    assert set(ORACLES) == set(codecs.names()) - {"none", "fp32"}


@pytest.mark.parametrize("dim", [2, 7, 64])
@pytest.mark.parametrize("name", ORACLES)
def test_bytes_equal_the_oracle(name: str, dim: int) -> None:
    values = gaussian(60, dim, seed=dim) * torch.exp2(torch.randint(-8, 8, (60, 1), generator=torch.Generator().manual_seed(1)))
    values[::3] += 2.5
    noise = Draw(NOISE, values.device).uniform((60, dim), Scratch(values.device)).tolist()
    for backend in codecs.backends(name):
        codec = codecs.get(name, backend)
        data = codec.encode(values, noise=NOISE)
        for row, found, uniforms in zip(values.tolist(), data.tolist(), noise, strict=True):
            expected = ORACLES[name](row, uniforms) if codec.stochastic else ORACLES[name](row)
            if name != "int8":
                assert bytes(found) == expected
                continue
            # Its codes are computed in FP32, so a value that lies within a few ulps of a tie may fall on the other side.
            ties = [abs((v - min(row)) * 255 / (max(row) - min(row)) % 1 - 0.5) < 1e-4 for v in row]
            for code, right, tie in zip(found[:dim], expected[:dim], ties, strict=True):
                assert code == right or (tie and abs(code - right) == 1)
            scale, low = struct.unpack("<ff", bytes(found[dim:]))
            right_scale, right_low = struct.unpack("<ff", expected[dim:])
            assert low == right_low
            assert scale == pytest.approx(right_scale, rel=2.0**-22)


@pytest.mark.parametrize(("name", "largest"), [("fp8_e4m3", 0x7E), ("fp8_e5m2", 0x7B)])
def test_every_fp8_code_decodes_to_what_torch_says(name: str, largest: int) -> None:
    codes = torch.tensor([c for c in range(256) if c & 0x7F <= largest], dtype=torch.uint8)
    dtype = torch.float8_e4m3fn if name == "fp8_e4m3" else torch.float8_e5m2
    for byte in (1, 2, 100, 127, 200, 239):
        data = torch.cat([codes, torch.tensor([byte], dtype=torch.uint8)])
        decoded = codecs.get(name).decode(data, len(codes)).double()
        assert torch.equal(decoded, codes.view(dtype).double() * 2.0 ** (byte - 127))
