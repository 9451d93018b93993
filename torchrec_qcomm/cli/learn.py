"""``torchrec-qcomm learn-levels``: the levels of a lookup-table codec for a sample of rows, as YAML to paste."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from torchrec_qcomm import codecs
from torchrec_qcomm.codecs import CodecLike
from torchrec_qcomm.errors import CodecError
from torchrec_qcomm.tune.learn import DECIMALS, learn_levels, sample_error
from torchrec_qcomm.tune.samples import read_samples


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
    errors = [f"{what} {sample_error(like, sample):.4f}" for what, like in beside.items()]
    yield f"# {name}: {sample.numel() // sample.shape[-1]:,} rows of {sample.shape[-1]:,}; relative error: {', '.join(errors)}"
    # Fixed point: YAML takes 1e-05 for a text.
    yield f"{{codec: lut{bits}, levels: [{', '.join(f'{level:.{DECIMALS}f}' for level in levels)}]}}"
