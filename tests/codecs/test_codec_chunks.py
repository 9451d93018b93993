"""Walking a payload in chunks changes nothing but the speed."""

from __future__ import annotations

import pytest
import torch

from tests.codecs.checks.cases import CASES, case_id, gaussian
from torchrec_qcomm import codecs
from torchrec_qcomm.codecs import CodecLike
from torchrec_qcomm.codecs.parts import chunks as walk


@pytest.mark.parametrize("limit", [1, 4, 7, 13, 26, 1000])
@pytest.mark.parametrize("shape", [(30,), (5, 13), (3, 4, 13), (1, 30), (30, 1), ()])
def test_chunks_cover_every_row_once(shape: tuple[int, ...], limit: int) -> None:
    wide = torch.zeros(*shape[:-1], shape[-1] + 2 if shape else 1, 6) if shape else torch.zeros(6)
    target = (wide[..., : shape[-1], 1:4] if shape else wide[1:4]).zero_()  # leading dimensions that cannot be merged
    source = torch.ones(*shape, 5)
    for part, view in walk.chunks(source, target, limit):
        assert part.shape[:-1] == view.shape[:-1]
        assert part.shape[:-1].numel() <= limit
        view += part[..., :3]
    assert (target == 1).all()
    assert wide.sum() == target.numel()


def test_mergeable_dimensions_become_one() -> None:
    parts = list(walk.chunks(torch.zeros(4, 5, 6, 3), torch.zeros(4, 5, 6, 2), 50))
    assert [tuple(part.shape) for part, _ in parts] == [(50, 3), (50, 3), (20, 3)]


def test_no_rows_make_no_chunks() -> None:
    assert list(walk.chunks(torch.zeros(4, 0, 3), torch.zeros(4, 0, 2), 50)) == []


@pytest.mark.parametrize("case", CASES, ids=case_id)
@pytest.mark.parametrize("dim", [5, 32])
def test_bytes_and_values_are_those_of_one_pass(case: tuple[CodecLike, str], dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = codecs.get(case[0], case[1])
    values = gaussian(6, 15, dim)[:, 1:-1]
    data = codec.encode(values)
    decoded = codec.decode(data, dim)
    for count in (1, 4, 30):
        monkeypatch.setattr(walk, "CHUNK_BYTES", 4 * dim * count)
        out = torch.zeros(6, 15, codec.row_bytes(dim), dtype=torch.uint8)[:, 2:]
        assert torch.equal(codec.encode(values, out=out), data)
        assert torch.equal(codec.decode(out, dim, out=torch.zeros(6, 17, dim)[:, :13]), decoded)
