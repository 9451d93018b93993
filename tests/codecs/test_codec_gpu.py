"""On a GPU a codec writes the bytes that it writes on a CPU, so that ranks of both kinds understand each other."""

from __future__ import annotations

import pytest
import torch

from tests.codecs.checks.cases import ALL, NOISE, RANGED, case_id, gaussian
from torchrec_qcomm import codecs
from torchrec_qcomm.codecs import CodecLike

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("case", [*ALL, *RANGED], ids=case_id)
@pytest.mark.parametrize("dim", [1, 5, 64, 127, 128])
def test_bytes_and_values_equal_the_cpus(case: tuple[CodecLike, str], dim: int) -> None:
    codec = codecs.get(case[0], case[1])
    values = gaussian(500, dim) * torch.logspace(-20, 20, 500).unsqueeze(1)
    here = codec.encode(values, noise=NOISE)
    there = codec.encode(values.cuda(), noise=NOISE)
    assert (there.cpu() != here).sum() <= 1e-6 * here.numel()  # one code at a rounding tie
    torch.testing.assert_close(codec.decode(here.cuda(), dim).cpu(), codec.decode(here, dim), rtol=2**-22, atol=0.0)


@pytest.mark.parametrize("case", [*ALL, *RANGED], ids=case_id)
def test_a_fault_stays_in_its_row(case: tuple[CodecLike, str]) -> None:
    codec = codecs.get(case[0], case[1])
    values = gaussian(9, 37).cuda()
    values[4, 5] = float("nan")
    back = codec.decode(codec.encode(values, noise=NOISE), 37)
    finite = back.isfinite().all(dim=1)
    assert finite.tolist() == [i != 4 for i in range(9)]
