"""``torchrec-qcomm codecs``: what each codec costs a row, how much error it makes, and how fast it is here."""

from __future__ import annotations

import torch

from torchrec_qcomm.codecs.speed import copy_speed, fbgemm_speeds
from torchrec_qcomm.errors import CodecError, describe
from torchrec_qcomm.report.columns import aligned
from torchrec_qcomm.tune.samples import read_samples, usable_rows
from torchrec_qcomm.tune.survey import DISTRIBUTIONS, Figures, sample_of, survey

ROWS = 4096
_HEADER = ["codec", "bytes", "ratio", "error", "worst", "bias", "cosine", "encode", "decode", ""]


def codecs_text(distribution: str, dim: int | None, seconds: float = 0.2) -> str:
    """What ``codecs`` prints: a table for each sample.

    Args:
        distribution: of random rows, or the path of a file with tensors.
        dim: of random rows, 128 by default; a file's rows have their own.
        seconds: to spend on timing each direction of each codec.

    Raises:
        CodecError: no such distribution or file, or rows that cannot be measured.
    """
    return "\n\n".join(
        f"{name}: {len(sample):,} rows, D = {sample.shape[1]}\n\n{table_text(sample, seconds)}"
        for name, sample in _samples(distribution, dim)
    )


def table_text(sample: torch.Tensor, seconds: float) -> str:
    """The table of one sample ``[rows, dim]``, and what its columns mean."""
    found = survey(sample, seconds=seconds)
    kernels = fbgemm_speeds(sample, seconds)
    speeds = [f"a plain copy {copy_speed(sample, seconds):.1f}"]
    speeds += [f"FBGEMM's {bits}-bit kernels {a:.1f} and {b:.1f}" for bits, (a, b) in kernels.items()]
    return "\n".join(
        [
            aligned([_HEADER, *map(_cells, found)], left={"codec", ""}),
            "",
            "bytes: of a row on the wire; ratio: to FP32; error: relative (L2); worst: of a value, over its row's largest;",
            "bias: below zero, values shrink; encode, decode: GB/s of FP32 values on this machine.",
            f"Beside them: {'; '.join(speeds)}.",
        ]
    )


def _cells(figures: Figures) -> list[str]:
    return [
        figures.name,
        f"{figures.row_bytes:,}",
        f"{figures.ratio:.2f}x",
        f"{figures.error:.4f}",
        f"{figures.worst:.4f}",
        f"{figures.bias:+.4f}",
        f"{figures.cosine:.4f}",
        f"{figures.encode:.2f}",
        f"{figures.decode:.2f}",
        "worse than sending nothing" if figures.useless else "",
    ]


def _samples(distribution: str, dim: int | None) -> list[tuple[str, torch.Tensor]]:
    if distribution in DISTRIBUTIONS:
        return [(distribution, sample_of(distribution, ROWS, 128 if dim is None else dim))]
    if dim is not None:
        wrong = "rows of a file have a dim of their own"
        raise CodecError(describe("--dim", wrong, got=dim, allowed=f"with --dist {', '.join(DISTRIBUTIONS)}"))
    return [(name, usable_rows(name, sample)) for name, sample in read_samples(distribution)]
