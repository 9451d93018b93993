"""``torchrec-qcomm codecs``: every codec is there, what it says is what is so, and wrong samples are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torchrec_qcomm import codecs
from torchrec_qcomm.cli.codecs import codecs_text
from torchrec_qcomm.cli.main import main
from torchrec_qcomm.codecs import CodecLike
from torchrec_qcomm.codecs.speed import fbgemm_speeds
from torchrec_qcomm.errors import CodecError
from torchrec_qcomm.tune.survey import likes, sample_of, survey


def rows_of(text: str) -> dict[str, list[str]]:
    table = text.split("\n\n")[1].splitlines()
    return {line.split()[0]: line.split()[1:] for line in table[1:]}


def test_every_codec_with_its_bytes_and_error() -> None:
    text = codecs_text("normal", 40, seconds=0)
    assert text.startswith("normal: 4,096 rows, D = 40\n")
    rows = rows_of(text)
    assert set(rows) == {str(codecs.spec(like)) for like in likes()}
    assert {codecs.spec(like).name for like in likes()} == set(codecs.names())
    values = sample_of("normal", 4096, 40)
    for name in ("int8", "int4", "sign"):
        codec = codecs.get(name)
        size, ratio, error, *_ = rows[name]
        assert int(size) == codec.row_bytes(40)
        assert float(ratio[:-1]) == pytest.approx(160 / codec.row_bytes(40), abs=0.01)
        lost = (codec.decode(codec.encode(values), 40) - values).norm(dim=-1) / values.norm(dim=-1)
        assert float(error) == pytest.approx(float(lost.square().mean().sqrt()), abs=2e-4)


def test_what_is_worse_than_nothing_is_marked_and_nothing_else() -> None:
    lines = codecs_text("normal", None, seconds=0).splitlines()
    marked = {line.split()[0] for line in lines if line.endswith("worse than sending nothing")}
    assert marked == {"qsgd2", "qsgd2(norm=max)", "ternary", "ternary(clip=2.5)"}


def test_bias_and_cosine() -> None:
    chosen: list[CodecLike] = ["none", "int4", "lut2", {"codec": "qsgd", "norm": "max"}]
    found = {f.name: f for f in survey(sample_of("laplace", 512, 64), chosen, 0)}
    assert (found["none"].error, found["none"].bias, found["none"].worst) == (0, 0, 0)
    assert found["none"].cosine == pytest.approx(1)
    assert abs(found["qsgd4(norm=max)"].bias) < 0.01
    assert found["lut2"].cosine < found["int4"].cosine < 1


def test_speeds_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    sample = sample_of("zipf-rows", 64, 16)
    (figures,) = survey(sample, ["int8"], seconds=0.001)
    assert figures.encode > 0
    assert figures.decode > 0
    assert set(fbgemm_speeds(sample, 0.001)) == {8, 4, 2}
    assert set(fbgemm_speeds(sample_of("normal", 64, 5), 0.001)) == {8}


def test_rows_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.pt"
    rows = torch.randn(2, 30, 12)
    rows[0, 3], rows[1, 4, 5] = 0, torch.nan
    torch.save({"a": rows, "b": torch.randn(7, 4)}, path)
    text = codecs_text(str(path), None, seconds=0)
    assert f"{path}, a: 58 rows, D = 12\n" in text
    assert f"{path}, b: 7 rows, D = 4\n" in text


def test_wrong_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "zeros.pt"
    torch.save(torch.zeros(4, 4), path)
    with pytest.raises(CodecError, match="no row that is finite and not zeros alone"):
        codecs_text(str(path), None)
    with pytest.raises(CodecError, match="--dim: rows of a file have a dim of their own; got 8"):
        codecs_text(str(path), 8)
    with pytest.raises(CodecError, match="unknown distribution; got 'normall'; allowed: laplace, normal, zipf-rows"):
        sample_of("normall", 4, 4)
    assert main(["codecs", "--dist", "nothing.pt"]) == 1
    assert "nothing.pt: no such file" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["codecs", "--dim", "0"])
    assert "not a number of values: '0'" in capsys.readouterr().err
