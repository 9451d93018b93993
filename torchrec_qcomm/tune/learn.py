"""Levels for the lookup-table codecs, learned from a sample of the rows that they will carry."""

from __future__ import annotations

import torch

from torchrec_qcomm.codecs.checks import FLOAT_DTYPES
from torchrec_qcomm.codecs.formats.lut import LARGEST_LEVEL
from torchrec_qcomm.codecs.registry import get
from torchrec_qcomm.codecs.spec import CodecLike
from torchrec_qcomm.errors import CodecError, describe

DECIMALS = 6
_MOST_VALUES = 1 << 22
_MOST_STEPS = 20_000
_SMALL_STEP = 1e-7


def learn_levels(sample: torch.Tensor, bits: int) -> tuple[float, ...]:
    """The levels with the least mean squared error on a sample, by Lloyd's algorithm.

    Each row is divided by its root mean square, as the codecs do it. Levels start at quantiles. Then each becomes the mean of
    the values that are nearest to it, until none moves by 1e-7. The same sample gives the same levels.

    Args:
        sample: ``[rows, dim]`` (or more leading dimensions), FP32, FP16 or BF16. Rows that are all zeros or not finite are left
            out. If there are more than 4 million values, only evenly spaced rows are used.
        bits: 4 or 2.

    Returns:
        ``2**bits`` ascending numbers, rounded to 6 decimals.

    Raises:
        CodecError: the dtype or ``bits`` is another, no row is left, or the sample has too few different values.

    >>> learn_levels(torch.tensor([[-7.0, -1.0, 1.0, 7.0]]), bits=2)
    (-1.4, -0.2, 0.2, 1.4)
    """
    if bits not in (4, 2):
        raise CodecError(describe("learn_levels, bits", "no such codec", got=bits, allowed=[4, 2]))
    values = _in_units(sample)
    levels = _start(values, 1 << bits)
    sums = torch.cat([values.new_zeros(1), values.cumsum(0)])
    for _ in range(_MOST_STEPS):
        ends = torch.searchsorted(values, (levels[1:] + levels[:-1]) / 2, right=True)
        ends = torch.cat([ends.new_zeros(1), ends, ends.new_full((1,), len(values))])
        counts = ends.diff()
        # An empty cell keeps its level, which lies between those of its neighbours as before.
        means = torch.where(counts > 0, sums[ends].diff() / counts.clamp(min=1), levels)
        step = (means - levels).abs().max()
        levels = means
        if step < _SMALL_STEP:
            break
    found = tuple(round(level, DECIMALS) for level in levels.clamp(-LARGEST_LEVEL, LARGEST_LEVEL).tolist())
    if len(set(found)) < len(found):
        raise _too_few(found, len(found))
    return found


def sample_error(like: CodecLike, sample: torch.Tensor) -> float:
    """The relative L2 error of a codec over the finite rows, each in units of its size. Learning makes it small."""
    rows = sample.detach().reshape(-1, sample.shape[-1]).float()
    size = rows.double().norm(dim=-1)
    rows, size = rows[size.isfinite() & (size > 0)], size[size.isfinite() & (size > 0)]
    codec = get(like)
    lost = (codec.decode(codec.encode(rows), rows.shape[-1]) - rows).double().norm(dim=-1)
    return float((lost / size).square().mean().sqrt())


def _in_units(sample: torch.Tensor) -> torch.Tensor:
    """The sorted values of all usable rows, FP64, each row divided by its root mean square."""
    if sample.dtype not in FLOAT_DTYPES or sample.dim() == 0:
        got = f"{list(sample.shape)} of {sample.dtype}"
        raise CodecError(
            describe("learn_levels, sample", "not rows of floats", got=got, allowed=[str(d) for d in FLOAT_DTYPES])
        )
    rows = sample.detach().reshape(-1, sample.shape[-1]) if sample.numel() else sample.new_zeros(0, 1)
    rows = rows[:: -(-max(rows.numel(), 1) // _MOST_VALUES)].double()
    rms = rows.square().mean(-1, keepdim=True).sqrt()
    usable = (rms.isfinite() & (rms > 0)).squeeze(-1)
    if not usable.any():
        allowed = "at least one row that is finite and not all zeros"
        raise CodecError(describe("learn_levels, sample", "no row to learn from", got=list(sample.shape), allowed=allowed))
    return (rows[usable] / rms[usable]).flatten().sort().values


def _start(values: torch.Tensor, count: int) -> torch.Tensor:
    """``count`` different levels: quantiles of the sorted values, or of the distinct values if those coincide."""
    for candidates in (values, values.unique()):
        places = (torch.arange(count, device=values.device) + 0.5) / count * len(candidates)
        levels = candidates[places.long()]
        if (levels.diff() > 0).all():
            return levels
    raise _too_few(values.unique().tolist(), count)


def _too_few(found: object, count: int) -> CodecError:
    return CodecError(
        describe(
            "learn_levels, sample", "its values, each divided by its row's RMS, are too few", got=found,
            allowed=f"at least {count} different values",
        )
    )  # fmt: skip
