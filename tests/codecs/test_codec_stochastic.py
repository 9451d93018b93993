"""What every stochastic codec must do: the noise decides, and nothing else does."""

from __future__ import annotations

import pytest
import torch

from tests.codecs.checks.cases import (
    NOISE,
    STOCHASTIC,
    case_id,
    gaussian,
)
from torchrec_qcomm import codecs
from torchrec_qcomm.codecs import Codec
from torchrec_qcomm.codecs.parts import chunks as walk
from torchrec_qcomm.errors import CodecError


@pytest.fixture(params=STOCHASTIC, ids=case_id)
def codec(request: pytest.FixtureRequest) -> Codec:
    return codecs.get(request.param[0], request.param[1])


def test_it_needs_noise(codec: Codec) -> None:
    with pytest.raises(CodecError, match="noise: needed"):
        codec.encode(gaussian(2, 8))


def test_the_stream_is_the_key_and_nothing_else(codec: Codec) -> None:
    values = gaussian(40, 33)
    before = torch.get_rng_state()
    first = codec.encode(values, noise=NOISE)
    assert torch.equal(first, codec.encode(values, noise=NOISE)), "another result on replay"
    assert torch.equal(torch.get_rng_state(), before), "the global generator moved"
    for other in (
        codecs.Noise(2, 2, 3, "test"),
        codecs.Noise(1, 3, 3, "test"),
        codecs.Noise(1, 2, 4, "test"),
        codecs.Noise(1, 2, 3, "another"),
    ):
        assert not torch.equal(first, codec.encode(values, noise=other))


def test_chunks_and_strides_do_not_matter(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    values = gaussian(6, 13, 40)[..., :33]
    first = codec.encode(values.contiguous(), noise=NOISE)
    assert torch.equal(first, codec.encode(values, noise=NOISE))
    monkeypatch.setattr(walk, "CHUNK_BYTES", 4 * 33 * 5)
    out = torch.zeros(6, 15, codec.row_bytes(33), dtype=torch.uint8)[:, 2:]
    assert torch.equal(codec.encode(values, out=out, noise=NOISE), first)


def test_positions_go_on_where_a_stream_is_cut(codec: Codec) -> None:
    values = gaussian(10, 24)
    whole = codec.encode(values, noise=NOISE)
    rest = codec.encode(values[4:], noise=NOISE.at(NOISE.start + 4 * 24))
    assert torch.equal(whole[4:], rest)
