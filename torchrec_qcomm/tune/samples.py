"""Samples of rows: those that a user has in a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from torchrec_qcomm.errors import CodecError, describe

_ALLOWED = "a float tensor [..., dim], or a dict of them, written by torch.save"


def read_samples(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a file, each with a name for messages.

    Raises:
        CodecError: no such file, or another content.
    """
    if not Path(path).is_file():
        raise CodecError(describe(path, "no such file", got=path, allowed=_ALLOWED))
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises what pickle, zipfile and its own reader raise
        said = str(error).strip().split("\n", 1)[0]
        got = f"{type(error).__name__}: {said}"
        raise CodecError(describe(path, "cannot be read as tensors alone", got=got, allowed=_ALLOWED)) from error
    named = {f"{path}, {key}": value for key, value in content.items()} if isinstance(content, Mapping) else {path: content}
    if not named:
        raise CodecError(describe(path, "an empty dict", got=content, allowed=_ALLOWED))
    for name, value in named.items():
        if not isinstance(value, torch.Tensor):
            raise CodecError(describe(name, "not a tensor", got=type(value).__name__, allowed=_ALLOWED))
        if not value.is_floating_point() or value.dim() == 0:
            got = f"{list(value.shape)} of {value.dtype}"
            raise CodecError(describe(name, "not rows of floats", got=got, allowed=_ALLOWED))
        yield name, value.float() if value.dtype == torch.float64 else value


def usable_rows(name: str, sample: torch.Tensor) -> torch.Tensor:
    """The rows of a sample that codecs can be measured on, FP32 ``[rows, dim]``: finite ones that are not all zeros.

    Args:
        name: of the sample, for messages.
        sample: ``[..., dim]``.

    Raises:
        CodecError: there are none.
    """
    rows = sample.reshape(-1, sample.shape[-1]).float()
    rows = rows[rows.isfinite().all(-1) & rows.any(-1)].contiguous()
    if not len(rows):
        raise CodecError(describe(name, "no row that is finite and not zeros alone", got=list(sample.shape), allowed="one"))
    return rows
