"""The Criteo file: what is read, and how a bad file is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from dlrm_lib.data.criteo import FIELDS, hashed, load_criteo
from dlrm_lib.errors import ExampleError


def line(label: str = "0", integers: str = "1", category: str = "68fd1e64") -> list[str]:
    return [label, *[integers] * 13, *[category] * 26]


def write(tmp_path: Path, lines: list[list[str]]) -> Path:
    path = tmp_path / "train.txt"
    path.write_text("".join("\t".join(fields) + "\n" for fields in lines))
    return path


def test_a_file_is_read(tmp_path: Path) -> None:
    lines = [line(label=str(i % 2), integers=str(i - 2), category=f"{i:08x}") for i in range(10)]
    lines[3][1], lines[3][14], lines[4][15] = "", "", "00000003"
    data = load_criteo(write(tmp_path, lines), rows=1000)
    assert data.labels.tolist() == [0, 1] * 5
    assert data.dense.shape == (10, 13)
    assert data.dense[0].tolist() == pytest.approx([-np.log(3)] * 13)
    assert data.dense[3, 0] == 0
    assert data.dense[3, 1] == pytest.approx(np.log(2))
    assert data.features["cat_0"].values[3] == 0
    assert data.features["cat_1"].values[3] == data.features["cat_1"].values[4] != 0
    assert len(data.tables) == 26
    assert all(int(v.values.min()) >= 0 and int(v.values.max()) < 1000 for v in data.features.values())
    assert data.train.tolist() == list(range(8))  # the lines are in the order of time
    assert data.test.tolist() == [8, 9]


def test_only_the_first_lines_are_read(tmp_path: Path) -> None:
    lines = [line() for _ in range(9)] + [["broken"]]
    assert len(load_criteo(write(tmp_path, lines), rows=5, max_lines=9).labels) == 9


def test_blank_lines_at_the_end_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, [line() for _ in range(5)])
    path.write_text(path.read_text() + "\n\n")
    assert len(load_criteo(path, rows=10).labels) == 5


def test_hashing_spreads_and_keeps_apart_the_missing() -> None:
    keys = np.arange(20_000)
    ids = hashed(keys, rows=101, seed=0)
    assert set(ids.tolist()) == set(range(1, 101))
    assert np.bincount(ids)[1:].min() > 130  # 200 on average
    assert not np.array_equal(ids, hashed(keys, rows=101, seed=1))
    assert hashed(np.array([-1]), rows=2, seed=0).tolist() == [0]


def spoiled(field: int, text: str) -> list[list[str]]:
    lines = [line() for _ in range(6)]
    lines[3][field] = text
    return lines


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (spoiled(0, "2"), r"train\.txt:4: field 1 \(label\): bad value; got '2'; allowed: 0, 1"),
        (spoiled(0, ""), r"train\.txt:4: field 1 \(label\): bad value; got ''"),
        (spoiled(2, "1.5"), r"train\.txt:4: field 3 \(int_1\): bad value; got '1\.5'; allowed: a decimal integer or empty"),
        (spoiled(39, "xyz"), r"train\.txt:4: field 40 \(cat_25\): bad value; got 'xyz'; allowed: 1 to 8 hex digits or empty"),
        (spoiled(14, "0123456789"), r"field 15 \(cat_0\): bad value; got '0123456789'"),
        (spoiled(14, "0x1f"), r"field 15 \(cat_0\): bad value; got '0x1f'"),
        ([line(), line()[:-1], line()], rf"train\.txt:2: wrong number of tab-separated fields; got {FIELDS - 1}; allowed: 40"),
        ([line(), [], line()], r"train\.txt:2: wrong number of tab-separated fields; got 1"),
        ([], r"train\.txt: too few lines; got 0"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, lines: list[list[str]], message: str) -> None:
    with pytest.raises(ExampleError, match=message):
        load_criteo(write(tmp_path, lines), rows=10)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExampleError, match=r"--criteo: cannot read the file; got '.*nothing\.txt'; .*No such file"):
        load_criteo(tmp_path / "nothing.txt", rows=10)


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(ExampleError, match="wrong number of tab-separated fields"):
        load_criteo(path, rows=10)


def test_too_few_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExampleError, match="too few rows; got 1"):
        load_criteo(write(tmp_path, [line()] * 5), rows=1)


def test_ids_fit_torchrec(tmp_path: Path) -> None:
    data = load_criteo(write(tmp_path, [line() for _ in range(5)]), rows=10)
    assert all(ids.values.dtype == torch.int64 for ids in data.features.values())
