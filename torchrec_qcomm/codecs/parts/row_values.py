"""Looking at rows of values: their ends, their range, and rows that are not finite."""

from __future__ import annotations

from math import inf

import torch

from torchrec_qcomm.codecs.parts.memory import Scratch


def extremes(x: torch.Tensor, scratch: Scratch) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest and largest value of every row, ``[..., 1]`` each; NaN in both for a row that holds a NaN."""
    shape = (*x.shape[:-1], 1)
    low, high = scratch.take("low", shape), scratch.take("high", shape)
    torch.amin(x, dim=-1, keepdim=True, out=low)  # two passes: torch.aminmax is slow along a dimension
    torch.amax(x, dim=-1, keepdim=True, out=high)
    return low, high


def finite_amax(x: torch.Tensor) -> float | None:
    """The largest magnitude in a chunk; None if it holds a NaN or Inf, and on an accelerator, where asking would wait for it.

    One pass that replaces two and most of the row-wise arithmetic, for chunks with nothing special in them.
    """
    if x.device.type != "cpu":
        return None
    low, high = torch.aminmax(x)
    amax = max(-low.item(), high.item())
    return amax if amax < inf else None  # false for NaN, which both are if there is one


def half_range(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Half of ``high - low``, which cannot overflow: finite for a row of finite values, and NaN or Inf for any other."""
    return high.mul(0.5).sub_(low, alpha=0.5)


def spoil(scale: torch.Tensor, witness: torch.Tensor) -> torch.Tensor:
    """Make ``scale`` NaN in the rows where ``witness`` is not finite, in place and without a branch."""
    return scale.add_(witness, alpha=0.0)


def bound_inputs(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values, row minimum and row maximum in FP64, for error bounds."""
    x = values.detach().to(torch.float64)
    return x, x.amin(dim=-1, keepdim=True), x.amax(dim=-1, keepdim=True)


def finish_bound(bound: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """FP64 bound to FP32, rounded up; infinite for the rows that decode to NaN, which promise nothing."""
    finite = (low - low + high - high) == 0
    bound = torch.where(finite, bound, torch.inf).to(torch.float32)
    return torch.nextafter(bound, torch.full_like(bound, torch.inf))
