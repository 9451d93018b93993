"""Whether a stochastic codec means what it is given: its decoded values over many streams, against closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from torchrec_qcomm import codecs
from torchrec_qcomm.codecs import Codec

ENCODINGS = 4096
ROWS = 16
"""Encodings in one call, at other positions of one stream."""


def decoded_many(codec: Codec, values: torch.Tensor, count: int = ENCODINGS) -> torch.Tensor:
    """``[count, dim]`` in FP64: one row, encoded ``count`` times, with streams of different steps and ranks."""
    found, rows = [], values.expand(ROWS, -1)
    for i in range(count // ROWS):
        noise = codecs.Noise(seed=7, step=i // 8, rank=i % 8, site="statistics")
        found.append(codec.decode(codec.encode(rows, noise=noise), len(values)))
    return torch.cat(found).double()


def check_unbiased(codec: Codec, values: torch.Tensor, variance: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Means within five standard errors by the closed-form variance, column by column, and all together by chi-square.

    Args:
        codec: stochastic.
        values: one row.
        variance: of each decoded value, FP64, from the row; 0 for a value that never moves.

    Returns:
        The measured variance of each column.
    """
    exact = values.double()
    samples = decoded_many(codec, values)
    expected = variance(exact)
    moving = expected > 0
    assert torch.equal(samples[:, ~moving], exact[~moving].expand(len(samples), -1)), "a value that is a level moved"
    z = (samples.mean(0) - exact)[moving] / (expected[moving] / len(samples)).sqrt()
    assert z.abs().max() < 5, f"biased: {z.abs().max():.1f} standard errors"
    # A sum of n squared standard normals has mean n and variance 2 n; columns draw independently.
    degrees = int(moving.sum())
    chi2 = float((z**2).sum())
    assert abs(chi2 - degrees) < 5 * math.sqrt(2 * degrees), f"chi-square {chi2:.1f} of {degrees} degrees"
    # Away from zero or towards it: small in each column, but all lean to the same side.
    lean = float(((samples.mean(0) - exact) * exact.sign()).sum() / (expected.sum() / len(samples)).sqrt())
    assert abs(lean) < 5, f"values {'grow' if lean > 0 else 'shrink'}: {lean:.1f} standard errors"
    measured = samples.var(0)
    spread = (measured[moving] / expected[moving]).mean()
    assert abs(spread - 1) < 0.05, f"the variance is {spread:.3f} of the closed form"
    return measured
