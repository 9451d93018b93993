"""One asynchronous, differentiable exchange of bytes.

    start(lookup)   forward: encode, launch              backward: land, decode, divide  -> gradient of the lookup
    wait()          forward: land, decode  -> values     backward: encode, launch        <- gradient of the values

The two are autograd functions joined by a one-element token, so that what runs between them overlaps the collective in both
directions. All state of a call is in its `Exchange`: any number may be in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import record_function

from torchrec_qcomm.codecs import Noise
from torchrec_qcomm.collectives.observer import Launch, Observers
from torchrec_qcomm.collectives.pack import pack, unpack
from torchrec_qcomm.collectives.range_headers import RangeHeadersOf
from torchrec_qcomm.errors import WireError, describe
from torchrec_qcomm.wire import Side


@dataclass(frozen=True, slots=True)
class ExchangeLayout:
    """What this rank sends and receives: the lookup and the values forward, their gradients backward."""

    lookup_out: Side
    values_in: Side
    gradient_out: Side
    lookup_gradient_in: Side


@dataclass(slots=True, eq=False)
class Exchange:
    """One call's exchange: `start`, then `wait` once.

    Attributes:
        parts: at this rank, a layout for each all-to-all of the flight; together their blocks cover the values once.
        gradient_divisor: asked in backward for what the gradient of the lookup is divided by.
        noise: the random stream; each direction and part draws its own.
        range_headers_of: for each direction, as `pack` takes it.
    """

    group: dist.ProcessGroup
    parts: Sequence[ExchangeLayout]
    gradient_divisor: Callable[[], int]
    observers: Observers
    noise: Noise
    range_headers_of: Mapping[str, RangeHeadersOf]
    _flight: list[tuple[dist.Work, torch.Tensor, torch.Tensor, Side]] = field(default_factory=list, init=False)
    _token: torch.Tensor | None = field(default=None, init=False)

    def start(self, lookup: torch.Tensor) -> None:
        """Encode ``lookup``, shaped as in the layout, and launch."""
        self._token = _Start.apply(lookup, self)

    def wait(self) -> torch.Tensor:
        """The samples' values, decoded, of the lookup's dtype. A second wait raises ``WireError``."""
        token, self._token = self._token, None
        return _Finish.apply(token, self)

    def _launch(self, direction: str, values: torch.Tensor, out: Side, into: Side) -> None:
        site = f"{self.noise.site}/{direction}" + (f"/{len(self._flight)}" if self._flight else "")
        send = pack(values, out, replace(self.noise, site=site), self.range_headers_of.get(direction))
        receive = torch.empty(into.nbytes, dtype=torch.uint8, device=send.device)
        for observer in self.observers.active:
            observer.launched(Launch("all_to_all", direction, self.group, out, values, send))
        with record_function(f"## qcomm all_to_all {direction} ##"):
            splits = {"output_split_sizes": list(into.splits), "input_split_sizes": list(out.splits)}
            work = dist.all_to_all_single(receive, send, **splits, group=self.group, async_op=True)
        self._flight.append((work, send, receive, into))  # the sent bytes must outlive the collective

    def _land(self) -> torch.Tensor:
        if not self._flight:
            allowed = "one wait a start, one backward a forward"
            raise WireError(describe("exchange", "nothing is in flight", got="a second wait", allowed=allowed))
        flight, self._flight = self._flight, []
        _, _, receive, into = flight[0]
        values = None if len(flight) == 1 else torch.empty(into.shape, dtype=into.dtype, device=receive.device)
        for work, _, receive, into in flight:
            work.wait()
            if receive.is_cuda:
                # Launch and wait may be on different streams (TorchRec's pipelines): keep the memory until this one is done.
                receive.record_stream(torch.cuda.current_stream(receive.device))
            landed = unpack(receive, into, values)
        return landed


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lookup: torch.Tensor, exchange: Exchange) -> torch.Tensor:
        ctx.exchange = exchange
        for part in exchange.parts:
            exchange._launch("forward", lookup, part.lookup_out, part.values_in)
        return lookup.new_zeros(1)

    @staticmethod
    def backward(ctx: Any, _token_gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient, divisor = ctx.exchange._land(), ctx.exchange.gradient_divisor()
        return (gradient.div_(divisor) if divisor != 1 else gradient), None


class _Finish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, exchange: Exchange) -> torch.Tensor:
        ctx.exchange = exchange
        return exchange._land()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        for part in ctx.exchange.parts:
            ctx.exchange._launch("backward", gradient, part.gradient_out, part.lookup_gradient_in)
        return gradient.new_zeros(1), None
