"""``torchrec-qcomm learn-levels``: the levels of a lookup-table codec for a sample of rows, as YAML to paste."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from torchrec_qcomm import codecs
from torchrec_qcomm.cli.samples import read_samples
from torchrec_qcomm.codecs import CodecLike
from torchrec_qcomm.errors import CodecError
from torchrec_qcomm.tune.learn import DECIMALS, learn_levels


def learned_text(path: str, bits: int) -> str:
    """What ``learn-levels`` prints: a comment and one line of YAML for each tensor of a file.

    Raises:
        CodecError: no such file, another content, or a tensor that levels cannot be learned from.
    """
    return "\n".join(line for name, sample in read_samples(path) for line in _lines(name, sample, bits))


def _lines(name: str, sample: torch.Tensor, bits: int) -> Iterator[str]:
    try:
        levels = learn_levels(sample, bits)
    except CodecError as error:
        raise CodecError(f"{name}: {error}") from error
    beside: dict[str, CodecLike] = {like: like for like in (f"int{bits}", f"lut{bits}") if like in codecs.names()}
    beside["with these levels"] = {"codec": f"lut{bits}", "levels": levels}
    errors = [f"{what} {_error(like, sample):.4f}" for what, like in beside.items()]
    yield f"# {name}: {sample.numel() // sample.shape[-1]:,} rows of {sample.shape[-1]:,}; relative error: {', '.join(errors)}"
    # Fixed point: YAML takes 1e-05 for a text.
    yield f"{{codec: lut{bits}, levels: [{', '.join(f'{level:.{DECIMALS}f}' for level in levels)}]}}"


def _error(like: CodecLike, sample: torch.Tensor) -> float:
    """The relative L2 error over the finite rows, each in units of its size: what learning minimises."""
    rows = sample.detach().reshape(-1, sample.shape[-1]).float()
    size = rows.double().norm(dim=-1)
    rows, size = rows[size.isfinite() & (size > 0)], size[size.isfinite() & (size > 0)]
    codec = codecs.get(like)
    lost = (codec.decode(codec.encode(rows), rows.shape[-1]) - rows).double().norm(dim=-1)
    return float((lost / size).square().mean().sqrt())
