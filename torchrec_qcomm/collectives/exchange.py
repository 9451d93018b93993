"""One asynchronous, differentiable byte all-to-all.

    forward:   start(lookup)  encode, launch          backward:  wait, decode, divide  -> gradient of the lookup
               wait()         wait, decode -> values             encode, launch        <- gradient of the values

The two halves are two autograd functions joined by a one-element token, so that what runs between them overlaps the
collective in both directions. All state of a call lives in its `Exchange`: any number may be in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import record_function

from torchrec_qcomm.codecs import Noise
from torchrec_qcomm.collectives.pack import HeadsOf, pack, unpack
from torchrec_qcomm.errors import WireError, describe
from torchrec_qcomm.wire import Side


@dataclass(frozen=True, slots=True)
class Plan:
    """What this rank encodes and decodes, in both directions.

    Attributes:
        lookup_out: the lookup, as it is sent forward.
        values_in: the samples' values, as they are received forward.
        gradient_out: the gradient of those values, as it is sent backward.
        lookup_gradient_in: the gradient of the lookup, as it is received backward.
    """

    lookup_out: Side
    values_in: Side
    gradient_out: Side
    lookup_gradient_in: Side


class Exchange:
    """One call's exchange: `start`, then `wait` once.

    Args:
        group: the process group; the plan's splits are in its rank order.
        plan: the byte plan at this rank.
        gradient_divisor: asked in backward for what the gradient of the lookup is divided by.
        sent: told ``(direction, side, buffer)`` at every launch, with what is about to be given to the collective.
        noise: the random stream of this exchange; each direction has its own part of it.
        heads_of: for each direction, as `pack` takes it.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        plan: Plan,
        gradient_divisor: Callable[[], int],
        sent: Callable[[str, Side, torch.Tensor], None],
        noise: Noise | None = None,
        heads_of: Mapping[str, HeadsOf] | None = None,
    ) -> None:
        self._group, self._plan = group, plan
        self._gradient_divisor, self._sent, self._noise = gradient_divisor, sent, noise
        self._heads_of = heads_of or {}
        self._flight: tuple[dist.Work, torch.Tensor, torch.Tensor] | None = None
        self._token: torch.Tensor | None = None

    def start(self, lookup: torch.Tensor) -> None:
        """Encode ``lookup``, shaped as planned, and launch the collective."""
        self._token = _Start.apply(lookup, self)

    def wait(self) -> torch.Tensor:
        """The samples' values, shaped as planned, decoded, of the lookup's dtype.

        Raises:
            WireError: the exchange was not started, or was waited for before.
        """
        token, self._token = self._token, None
        return _Finish.apply(token, self)

    def _launch(self, direction: str, values: torch.Tensor, out: Side, into: Side) -> None:
        noise = None if self._noise is None else replace(self._noise, site=f"{self._noise.site}/{direction}")
        send = pack(values, out, noise, self._heads_of.get(direction))
        receive = torch.empty(into.nbytes, dtype=torch.uint8, device=send.device)
        self._sent(direction, out, send)
        with record_function(f"## qcomm all_to_all {direction} ##"):
            work = dist.all_to_all_single(
                receive,
                send,
                output_split_sizes=list(into.splits),
                input_split_sizes=list(out.splits),
                group=self._group,
                async_op=True,
            )
        self._flight = (work, send, receive)  # the sent bytes must outlive the collective

    def _land(self, into: Side) -> torch.Tensor:
        if self._flight is None:
            raise WireError(
                describe(
                    "exchange", "nothing is in flight", got="a second wait", allowed="one wait a start, one backward a forward"
                )
            )
        work, _, receive = self._flight
        self._flight = None
        work.wait()
        if receive.is_cuda:
            # Launch and wait may be on different streams (TorchRec's pipelines): keep the memory until this one is done.
            receive.record_stream(torch.cuda.current_stream(receive.device))
        return unpack(receive, into)


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lookup: torch.Tensor, exchange: Exchange) -> torch.Tensor:
        ctx.exchange = exchange
        plan = exchange._plan
        exchange._launch("forward", lookup, plan.lookup_out, plan.values_in)
        return lookup.new_zeros(1)

    @staticmethod
    def backward(ctx: Any, _token_gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        exchange: Exchange = ctx.exchange
        gradient = exchange._land(exchange._plan.lookup_gradient_in)
        divisor = exchange._gradient_divisor()
        return (gradient.div_(divisor) if divisor != 1 else gradient), None


class _Finish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, exchange: Exchange) -> torch.Tensor:
        ctx.exchange = exchange
        return exchange._land(exchange._plan.values_in)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        exchange: Exchange = ctx.exchange
        plan = exchange._plan
        exchange._launch("backward", gradient, plan.gradient_out, plan.lookup_gradient_in)
        return gradient.new_zeros(1), None
