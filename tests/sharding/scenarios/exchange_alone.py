"""The exchange alone, with a lookup of chosen values in the place of TorchRec's; what ranks do and see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torchrec.distributed.embedding_sharding import EmbeddingShardingContext

from tests.sharding.scenarios.hops import hop
from tests.sharding.scenarios.pooled_collections import _over
from torchrec_qcomm import codecs
from torchrec_qcomm.collectives import Observers
from torchrec_qcomm.policy import Policy, Rule, Table
from torchrec_qcomm.sharding.dists.pooled import QCommPooledEmbeddingDist
from torchrec_qcomm.sharding.precision import TableCodecs
from torchrec_qcomm.sharding.traffic import TrafficMeter
from torchrec_qcomm.wire import Column, PooledLayout, ReduceLayout

COLLECTIVES = (
    "all_to_all_single",
    "all_to_all",
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "broadcast",
    "barrier",
    "all_gather_object",
)


@dataclass
class Launch:
    """A collective that was called: its name, what it was given, and how many bytes of that go to each rank."""

    name: str
    dtype: torch.dtype | None
    splits: list[int] | None


@contextmanager
def watched() -> Iterator[list[Launch]]:
    """Every collective that is launched in the block."""
    launches: list[Launch] = []
    real = {name: getattr(dist, name) for name in COLLECTIVES}

    def spy(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            given = kwargs.get("input", args[1] if len(args) > 1 else None)
            splits = kwargs.get("input_split_sizes")
            launches.append(Launch(name, getattr(given, "dtype", None), None if splits is None else list(splits)))
            return real[name](*args, **kwargs)

        return call

    for name in COLLECTIVES:
        setattr(dist, name, spy(name))
    try:
        yield launches
    finally:
        for name, function in real.items():
            setattr(dist, name, function)


@dataclass(frozen=True)
class Alone:
    """One exchange.

    Attributes:
        owned: for each rank, its columns as ``(table, dim)``. Rank by rank the same for a reduce-scatter.
        sizes: batch of each rank.
        names: for each table, the codec of both directions, or one for either.
        dtype: of the lookup.
        reduced: a vector is the sum of all ranks'.
        row_scales: what the rows of a lookup are multiplied with, in turn.
        odd_offset: lookup and gradient start one value into their memory.
    """

    owned: tuple[tuple[tuple[str, int], ...], ...]
    sizes: tuple[int, ...]
    names: Mapping[str, str | tuple[str, str]]
    dtype: torch.dtype = torch.float32
    reduced: bool = False
    row_scales: tuple[float, ...] = (1.0,)
    odd_offset: bool = False

    def codec(self, table: str, direction: int) -> str:
        """The name of the codec forward (0) or backward (1)."""
        names = self.names[table]
        return names if isinstance(names, str) else names[direction]


def exchange_alone(rank: int, world: int, case: Alone) -> dict[str, Any]:
    """Forward and backward of random values; errors over bounds, what was launched, and what was counted."""
    policy = Policy(rules=tuple(Rule(tables=t, forward=case.codec(t, 0), backward=case.codec(t, 1)) for t in case.names))
    sites = TableCodecs(policy.resolve(Table(t, 10, 8) for t in case.names), None, codecs.get)
    columns = [[Column(*column) for column in owned] for owned in case.owned]
    observers, meter = Observers(), TrafficMeter()
    observers.active.append(meter)
    layout = ReduceLayout if case.reduced else PooledLayout
    output_dist = QCommPooledEmbeddingDist(hop(dist.group.WORLD, columns, case.dtype, sites, observers, layout=layout))

    def values(rows: int, owned: Sequence[Column], seed: int) -> torch.Tensor:
        width = sum(column.dim for column in owned)
        drawn = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
        scales = torch.tensor([case.row_scales[i % len(case.row_scales)] for i in range(rows)]).view(-1, 1)
        return (drawn * scales).to(case.dtype)

    def laid(tensor: torch.Tensor) -> torch.Tensor:
        """The same values, perhaps at an odd place."""
        if not case.odd_offset:
            return tensor.clone()
        memory = torch.full((tensor.numel() + 1,), torch.nan, dtype=tensor.dtype)
        return memory[1:].view(tensor.shape).copy_(tensor)

    lookups = [values(sum(case.sizes), owned, seed) for seed, owned in enumerate(columns)]
    every = columns[0] if case.reduced else [column for owned in columns for column in owned]
    gradients = [values(size, every, 100 + seed) for seed, size in enumerate(case.sizes)]
    first, size = sum(case.sizes[:rank]), case.sizes[rank]
    mine = slice(first, first + size)
    parts = [lookup[mine].float() for lookup in lookups]
    want = sum(parts) if case.reduced else torch.cat(parts, dim=1)
    at = 0 if case.reduced else sum(column.dim for owned in columns[:rank] for column in owned)
    width = sum(column.dim for column in columns[rank])
    want_gradient = torch.cat([gradient[:, at : at + width].float() for gradient in gradients]) / world

    def bound(tensor: torch.Tensor, owned: Sequence[Column], direction: int) -> torch.Tensor:
        pieces = tensor.float().split([column.dim for column in owned], dim=1)
        found = [codecs.get(case.codec(c.table, direction)).error_bound(p) for c, p in zip(owned, pieces, strict=True)]
        # What is computed beside the codec: a sum, a division, and the rounding of a 16-bit result.
        rounding = 2.0**-22 if case.dtype == torch.float32 else 1.5 * torch.finfo(case.dtype).eps
        return torch.cat([tensor.new_zeros(tensor.shape[0], 0), *found], dim=1) + rounding * tensor.float().abs()

    limit = sum(bound(part, every, 0) for part in parts) if case.reduced else bound(want, every, 0)
    lookup = laid(lookups[rank]).requires_grad_()
    with watched() as launches:
        # A rank without tables hands over a flat empty tensor, as TorchRec's lookup does.
        given = lookup if width else lookup.view(-1)
        out = output_dist(given, EmbeddingShardingContext(batch_size_per_rank=list(case.sizes))).wait()
        out.backward(laid(gradients[rank]))
    divided = bound(want_gradient * world, columns[rank], 1) / world
    result = out.detach()
    return {
        "shape": tuple(result.shape),
        "dtypes": (str(result.dtype), str(lookup.grad.dtype)),
        "forward": _over(result.float() - want, limit),
        "backward": _over(lookup.grad.float() - want_gradient, divided) if width else 0.0,
        "relative": float(((result.float() - want).abs() / want.abs()).max()) if result.numel() else 0.0,
        "differs": not torch.equal(result.float(), want),
        "gradient differs": not torch.equal(lookup.grad.float(), want_gradient),
        "gradient": tuple(lookup.grad.shape),
        "zeros": lookup.grad.numel() == 0 or bool((lookup.grad == 0).all()),
        "launches": [(launch.name, str(launch.dtype), launch.splits) for launch in launches],
        "counted": {
            direction: meter.local().matrix(world, include_self=True, direction=direction)[rank]
            for direction in ("forward", "backward")
        },
        "fp32": meter.local().fp32_bytes(include_self=True),
    }
