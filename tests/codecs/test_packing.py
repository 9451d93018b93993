"""Codes of few bits in bytes, beside plain Python."""

from __future__ import annotations

import pytest
import torch

from torchrec_qcomm.codecs.parts.memory import Scratch
from torchrec_qcomm.codecs.parts.packing import pack, pack_trits, packed_bytes, trit_bytes, unpack, unpack_trits

CPU = torch.device("cpu")


def codes_of(dim: int, levels: int, room: int) -> torch.Tensor:
    codes = torch.zeros(6, room, dtype=torch.uint8)
    codes[:, :dim] = torch.randint(0, levels, (6, dim), generator=torch.Generator().manual_seed(dim), dtype=torch.uint8)
    return codes


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
@pytest.mark.parametrize("dim", [1, 2, 3, 5, 7, 8, 9, 12, 31, 33, 128])
def test_bits(bits: int, dim: int) -> None:
    nbytes, each = packed_bytes(dim, bits), 8 // bits
    codes = codes_of(dim, 1 << bits, nbytes * each)
    wide = torch.full((6, nbytes + 3), 255, dtype=torch.uint8)
    pack(codes.clone(), bits, wide[:, 1 : nbytes + 1], Scratch(CPU))
    by_hand = [
        [sum(code << bits * i for i, code in enumerate(row[at : at + each])) for at in range(0, nbytes * each, each)]
        for row in codes.tolist()
    ]
    assert wide[:, 1 : nbytes + 1].tolist() == by_hand
    assert (wide[:, [0, -2, -1]] == 255).all()
    assert torch.equal(unpack(wide[:, 1 : nbytes + 1], bits, Scratch(CPU)), codes)


@pytest.mark.parametrize("dim", [1, 4, 5, 6, 13, 128])
def test_trits(dim: int) -> None:
    nbytes = trit_bytes(dim)
    codes = codes_of(dim, 3, nbytes * 5)
    wide = torch.full((6, nbytes + 2), 255, dtype=torch.uint8)
    pack_trits(codes, wide[:, 1:-1], Scratch(CPU))
    by_hand = [
        [sum(c * 3**i for i, c in enumerate(row[at : at + 5])) for at in range(0, nbytes * 5, 5)] for row in codes.tolist()
    ]
    assert wide[:, 1:-1].tolist() == by_hand
    assert torch.equal(unpack_trits(wide[:, 1:-1], Scratch(CPU)), codes)
