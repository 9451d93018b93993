"""Broken codecs: the usual bugs, which the gates of the convergence check must notice.

Each wraps ``none``: it spoils the values and then moves them as they are. The receiver sees what a codec with that bug would
give; the bytes on the wire are other ones, and are not looked at here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from torchrec_qcomm import codecs
from torchrec_qcomm.codecs import Codec, CodecSpec

LEVELS = 15
"""Steps between the smallest and the largest value of an INT4 row."""


def truncated_int4(values: torch.Tensor) -> torch.Tensor:
    """INT4 a row, rounding down where it should round to nearest.

    >>> truncated_int4(torch.tensor([[0.0, 0.9, 1.9, 15.0]]))
    tensor([[ 0.,  0.,  1., 15.]])
    """
    low, high = values.amin(-1, keepdim=True), values.amax(-1, keepdim=True)
    return _on_grid(values, low, high, torch.floor)


def int4_with_one_scale(values: torch.Tensor) -> torch.Tensor:
    """INT4 with one scale and one minimum for everything that is sent, where each row should have its own."""
    if values.numel() == 0:
        return values
    return _on_grid(values, values.min(), values.max(), torch.round)


def e5m2_without_scale(values: torch.Tensor) -> torch.Tensor:
    """A plain cast: gradients of a mean loss are below what E5M2 can hold (2^-17 rounds to 0) without a scale for the row."""
    return values.to(torch.float8_e5m2).to(values.dtype)


def e5m2_without_scale_of_global_mean(values: torch.Tensor) -> torch.Tensor:
    """The same for gradients of the mean loss of all ranks' samples.

    TorchRec divides gradients by the number of ranks after the exchange, so what it sends are gradients of each rank's own
    mean: on the two ranks of this check twice as large, just large enough for training not to suffer from the plain cast.
    """
    return e5m2_without_scale(values / 2) * 2


def dropped(values: torch.Tensor) -> torch.Tensor:
    """Nothing arrives."""
    return torch.zeros_like(values)


def halved(values: torch.Tensor) -> torch.Tensor:
    """A factor of 0.5: a division by the number of ranks made twice on two ranks."""
    return values * 0.5


def _on_grid(
    values: torch.Tensor, low: torch.Tensor, high: torch.Tensor, rounded: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    step = ((high - low) / LEVELS).clamp(min=torch.finfo(torch.float32).tiny)
    # a hair up, so that a value that is on the grid is not one step lower after `floor`
    return low + step * rounded((values - low) / step + 1e-5)


class Spoiled:
    """A codec that changes the values and then moves them as ``none`` does."""

    def __init__(self, spec: CodecSpec, spoil: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.spec = spec  # the name that the policy has for it
        self._spoil = spoil
        self._none = codecs.get("none")

    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int:
        """As ``none``."""
        return self._none.row_bytes(dim, dtype)

    @property
    def range_header_bytes(self) -> int:
        return 0

    def within(self, range_header: torch.Tensor) -> Codec:
        return self

    @property
    def stochastic(self) -> bool:
        return False

    def encode(self, values: torch.Tensor, out: torch.Tensor | None = None, noise: codecs.Noise | None = None) -> torch.Tensor:
        """Spoil, then as ``none``."""
        return self._none.encode(self._spoil(values), out)

    def decode(
        self, data: torch.Tensor, dim: int, out: torch.Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """As ``none``."""
        return self._none.decode(data, dim, out, dtype)

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        """None is promised."""
        return torch.full_like(values, torch.inf, dtype=torch.float32)

    def check_payload(self, dtype: torch.dtype) -> None:
        """Takes any payload."""


def factory(faults: Mapping[str, Callable[[torch.Tensor], torch.Tensor]]) -> Callable[[CodecSpec], Codec]:
    """A ``codec_factory`` that gives the real codecs, but for those that are named in ``faults``."""

    def make(spec: CodecSpec) -> Codec:
        spoil = faults.get(spec.name)
        return codecs.get(spec) if spoil is None else Spoiled(spec, spoil)

    return make
