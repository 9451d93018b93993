"""Any values at all: hypothesis looks for a row that breaks the contract."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.codecs.checks.cases import ALL, DTYPES, RANGED, as_dtype, case_id, check_contract, takes
from torchrec_qcomm import codecs
from torchrec_qcomm.codecs import CodecLike

FLOATS = st.one_of(
    st.floats(width=32, allow_nan=True, allow_infinity=True),
    st.floats(width=32, min_value=-1.0, max_value=1.0),
    st.sampled_from([0.0, -0.0, 1.0, 448.0, 57344.0, 65504.0, 3.4028234663852886e38, -3.4028234663852886e38, 1e-45]),
)


EXAMPLES = int(os.environ.get("CODEC_EXAMPLES", "80"))
"""For each codec and backend; `make fuzz` looks at more than 20,000 in all."""


@st.composite
def payloads(draw: st.DrawFn) -> torch.Tensor:
    """A few rows of any floats; long rows repeat short ones, with one value of their own."""
    dim = draw(st.integers(1, 9))
    rows = draw(st.lists(st.lists(FLOATS, min_size=dim, max_size=dim), min_size=1, max_size=4))
    values = torch.tensor(rows, dtype=torch.float32)
    if draw(st.booleans()):
        length = draw(st.sampled_from([16, 31, 32, 33, 65]))
        values = values.repeat(1, -(-length // dim))[:, :length]
        values[draw(st.integers(0, len(rows) - 1)), draw(st.integers(0, length - 1))] = draw(FLOATS)
    return as_dtype(values, draw(st.sampled_from(DTYPES)))


@pytest.mark.parametrize("case", [*ALL, *RANGED], ids=case_id)
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
@given(values=payloads())
def test_the_contract_holds_for_any_payload(case: tuple[CodecLike, str], values: torch.Tensor) -> None:
    codec = codecs.get(case[0], case[1])
    assume(takes(codec, values.dtype))
    check_contract(codec, values, "hypothesis")
    if codec.stochastic:
        return
    together = codec.encode(values)
    for i, row in enumerate(values):
        if row.isfinite().all():  # what a faulty row holds besides its NaN is not promised
            assert torch.equal(codec.encode(row), together[i])
