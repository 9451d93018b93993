"""``torchrec-qcomm learn-levels``: from a file of rows to a config with levels that are better for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from torchrec_qcomm import codecs, load_config
from torchrec_qcomm.cli.main import main


def heavy_tailed(rows: int, dim: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, dim, generator=generator) * torch.randn(rows, dim, generator=generator)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("rows.pt")


def relative_error(spec: codecs.CodecSpec, values: torch.Tensor) -> float:
    codec = codecs.get(spec)
    return float((codec.decode(codec.encode(values), values.shape[-1]) - values).norm() / values.norm())


@pytest.mark.parametrize("bits", ["4", "2"])
def test_what_is_printed_is_yaml_that_makes_a_better_codec(file, bits, capsys):
    torch.save(heavy_tailed(1000, 128, 1), file)
    assert main(["learn-levels", str(file), "--bits", bits]) == 0
    comment, yaml = capsys.readouterr().out.splitlines()
    Path("policy.yaml").write_text(f"precision:\n  default: {{forward: {yaml}}}\n")
    spec = load_config("policy.yaml").policy.forward
    assert spec.name == f"lut{bits}"
    values = heavy_tailed(1000, 128, 2)
    default, learned = relative_error(codecs.spec(f"lut{bits}"), values), relative_error(spec, values)
    assert learned < 0.93 * default
    assert comment.startswith("# rows.pt: 1,000 rows of 128; relative error: ")
    printed = {what: float(error) for what, error in re.findall(r"(\w[\w ]*) (0\.\d{4})", comment)}
    assert printed[f"lut{bits}"] == pytest.approx(default, rel=0.05)
    assert printed["with these levels"] == pytest.approx(learned, rel=0.05)
    assert ("int4" in printed) == (bits == "4") or "int2" in codecs.names()


def test_a_dict_gives_a_line_for_each_tensor(file, capsys):
    torch.save({"t_a": heavy_tailed(200, 16, 1), "t_b": heavy_tailed(50, 8, 2).view(5, 10, 8).double()}, file)
    assert main(["learn-levels", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(";")[0] for line in lines[::2]] == ["# rows.pt, t_a: 200 rows of 16", "# rows.pt, t_b: 50 rows of 8"]
    assert all(line.startswith("{codec: lut4, levels: [-") for line in lines[1::2])
    assert lines[1] != lines[3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"rows\.pt: no such file; got 'rows\.pt'; allowed: a float tensor \[\.\.\., dim\], or a dict of them"),
        (b"no tensors", r"rows\.pt: cannot be read as tensors alone; got '\w+: .*; allowed: a float tensor"),
        (Path("x"), r"rows\.pt: cannot be read as tensors alone; got 'UnpicklingError"),
        ([1, 2], r"rows\.pt: not a tensor; got 'list'; allowed"),
        ({}, r"rows\.pt: an empty dict"),
        ({"t": 3}, r"rows\.pt, t: not a tensor; got 'int'; allowed"),
        ({"t": torch.arange(4)}, r"rows\.pt, t: not rows of floats; got '\[4\] of torch\.int64'; allowed"),
        (torch.zeros(3, 4), r"rows\.pt: learn_levels, sample: no row to learn from; got \[3, 4\]"),
        ({"t": torch.ones(3, 4)}, r"rows\.pt, t: learn_levels, sample: .* too few"),
        (torch.zeros(3, 0), r"rows\.pt: .*no row to learn from"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(file, content, message, capsys):
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        torch.save(content, file)
    assert main(["learn-levels", str(file)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.match(message, printed.err)


def test_other_bits_are_a_wrong_command_line(file, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["learn-levels", str(file), "--bits", "3"])
    assert caught.value.code == 2
    assert "--bits" in capsys.readouterr().err
