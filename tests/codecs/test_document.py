"""The page of all codecs is of today's codecs."""

from __future__ import annotations

import re
from pathlib import Path

from tests.codecs.document import DIMS
from torchrec_qcomm import codecs
from torchrec_qcomm.tune.survey import likes, sample_of, survey

PAGE = Path(__file__).parents[2] / "docs" / "codecs.md"


def test_the_page_has_every_codec_with_its_bytes() -> None:
    sections = re.split(r"^## D = (\d+)$", PAGE.read_text(), flags=re.MULTILINE)[1:]
    assert [int(dim) for dim in sections[::2]] == list(DIMS)
    for dim, text in zip(DIMS, sections[1::2], strict=True):
        rows = dict(re.findall(r"^\| `([^`]+)` \| (\d+) \|", text, re.MULTILINE))
        assert rows == {str(codecs.spec(like)): str(codecs.get(like).row_bytes(dim)) for like in likes()}


def test_its_errors_are_those_of_today() -> None:
    text = re.split(r"^## D = 128$", PAGE.read_text(), flags=re.MULTILINE)[1]
    found = re.findall(r"^\| `([^`]+)` \| \d+ \| [\d.]+ \| \**([\d.]+)", text, re.MULTILINE)
    errors = {name: float(error) for name, error in found}
    for figures in survey(sample_of("normal", 4096, 128), ["int8", "int4", "int2", "sign", "ternary", "mxfp4"], seconds=0):
        assert abs(figures.error - errors[figures.name]) <= 1e-4
