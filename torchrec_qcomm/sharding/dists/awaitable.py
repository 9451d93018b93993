"""TorchRec's handle on a started exchange."""

from __future__ import annotations

import torch
from torchrec.distributed.types import Awaitable

from torchrec_qcomm.collectives import Exchange


class ExchangeAwaitable(Awaitable[torch.Tensor]):
    """Waits for an exchange."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    @torch.compiler.disable  # it would trace layouts
    def _wait_impl(self) -> torch.Tensor:
        return self._exchange.wait()
