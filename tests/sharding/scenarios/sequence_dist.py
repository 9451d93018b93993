"""What ranks do with the output dist of sequences alone: a lookup of random vectors stands in for TorchRec's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torchrec.distributed.sharding.sequence_sharding import SequenceShardingContext
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.sharding.scenarios.hops import hop
from torchrec_qcomm import codecs
from torchrec_qcomm.collectives import Observers
from torchrec_qcomm.errors import WireError
from torchrec_qcomm.policy import Policy, Rule, Table
from torchrec_qcomm.sharding.dists.sequence import QCommSequenceEmbeddingDist
from torchrec_qcomm.sharding.precision import TableCodecs
from torchrec_qcomm.wire import Column

OWNED = (("a", "b", "a"), (), ("c", "b"))
"""The tables of each rank's columns; a table has several, and the middle rank has none."""


def lengths_of(owner: int, sample: int, size: int) -> torch.Tensor:
    """Ids of each of ``owner``'s columns in each of ``size`` samples of a rank ``[columns, size]``; some samples have none."""
    generator = torch.Generator().manual_seed(10 * owner + sample)
    return torch.randint(0, 4, (len(OWNED[owner]), size), generator=generator)


def alone(
    rank: int, world: int, dim: int, sizes: Sequence[int], names: dict[str, str], dtype: torch.dtype, in_flight: int = 1
) -> list[dict[str, Any]]:
    """Exchange random vectors, ``in_flight`` times before any is waited for; errors over bounds."""
    policy = Policy(rules=tuple(Rule(tables=t, forward=name, backward=name) for t, name in names.items()))
    sites = TableCodecs(policy.resolve(Table(t, 10, dim) for t in "abc"), world, codecs.get)
    columns = [[Column(table, dim) for table in owned] for owned in OWNED]
    output_dist = QCommSequenceEmbeddingDist(hop(dist.group.WORLD, columns, dtype, sites, Observers()))
    flights = [_Flight(rank, world, dim, sizes, dtype, seed) for seed in range(in_flight)]
    awaitables = [output_dist(flight.lookup, flight.context) for flight in flights]
    outs = [awaitable.wait() for awaitable in reversed(awaitables)][::-1]
    for flight, out in zip(flights, outs, strict=True):
        out.backward(flight.gradient)
    return [
        {
            "forward": _worst(out.detach(), flight.expected, flight.expected_tables, names),
            "backward": _worst(flight.lookup.grad * world, flight.expected_gradient, flight.lookup_tables, names),
            "differs": not torch.equal(out.detach(), flight.expected),
            "shape": out.shape == flight.expected.shape,
            "dtype": out.dtype == dtype == flight.lookup.grad.dtype,
        }
        for flight, out in zip(flights, outs, strict=True)
    ]


class _Flight:
    """The vectors, gradients and context of one exchange at one rank."""

    def __init__(self, rank: int, world: int, dim: int, sizes: Sequence[int], dtype: torch.dtype, seed: int) -> None:
        ranks = range(world)
        lengths = {(o, s): lengths_of(o, s, sizes[s]) for o in ranks for s in ranks}
        generator = torch.Generator().manual_seed(seed)
        pieces = {
            (owner, column, sample): torch.randn(2, int(lengths[owner, sample][column].sum()), dim, generator=generator).to(
                dtype
            )
            for owner in ranks
            for column in range(len(OWNED[owner]))
            for sample in ranks
        }
        empty = torch.empty(2, 0, dim, dtype=dtype)
        mine = [(column, sample) for column in range(len(OWNED[rank])) for sample in ranks]
        lookup, self.expected_gradient = torch.cat([empty, *(pieces[rank, c, s] for c, s in mine)], dim=1)
        self.lookup = lookup.clone().requires_grad_()
        self.lookup_tables = [OWNED[rank][c] for c, s in mine for _ in range(pieces[rank, c, s].shape[1])]
        theirs = [(owner, column) for owner in ranks for column in range(len(OWNED[owner]))]
        self.expected, self.gradient = torch.cat([empty, *(pieces[o, c, rank] for o, c in theirs)], dim=1)
        self.expected_tables = [OWNED[o][c] for o, c in theirs for _ in range(pieces[o, c, rank].shape[1])]
        before = torch.cat([lengths[owner, rank] for owner in ranks])
        self.context = SequenceShardingContext(
            batch_size_per_rank=list(sizes),
            features_before_input_dist=KeyedJaggedTensor(
                [f"f{i}" for i in range(len(before))],
                torch.zeros(int(before.sum()), dtype=torch.int64),
                lengths=before.reshape(-1),
                stride=sizes[rank],
            ),
            input_splits=[int(lengths[owner, rank].sum()) for owner in ranks],
            output_splits=[int(lengths[rank, sample].sum()) for sample in ranks],
            lengths_after_input_dist=torch.cat([lengths[rank, sample] for sample in ranks], dim=1),
        )


def _worst(got: torch.Tensor, want: torch.Tensor, tables: list[str], names: dict[str, str]) -> float:
    """The largest error as a share of what its table's codec allows."""
    if not want.shape[0]:
        return 0.0
    got, want = got.float(), want.float()
    bound = torch.stack(
        [codecs.get(names.get(table, "none")).error_bound(row[None])[0] for table, row in zip(tables, want, strict=True)]
    )
    # Dividing by the world and multiplying again rounds twice.
    return float(((got - want).abs() / (bound + 2**-22 * want.abs()).clamp_min(1e-38)).max())


def contradicting(rank: int, world: int) -> list[str]:
    """What the dist says of contexts that cannot be."""
    sites = TableCodecs(Policy().resolve([Table("a", 10, 4)]), world, codecs.get)
    columns = [[Column("a", 4)], []]
    output_dist = QCommSequenceEmbeddingDist(hop(dist.group.WORLD, columns, torch.float32, sites, Observers()))
    said = []
    lengths = torch.tensor([[1, 1]]) if rank == 0 else torch.empty(0, 2, dtype=torch.int64)
    features = KeyedJaggedTensor(["f"], torch.zeros(1, dtype=torch.int64), lengths=torch.tensor([1]))
    full = {"lengths_after_input_dist": lengths, "features_before_input_dist": features, "batch_size_per_rank": [1, 1]}
    for context in (
        None,
        SequenceShardingContext(batch_size_per_rank=[1, 1]),
        SequenceShardingContext(**full, input_splits=[1, 0], output_splits=[1, 2]),
        SequenceShardingContext(**full, input_splits=[2, 0], output_splits=[1, 1] if rank == 0 else [0, 0]),
    ):
        try:
            output_dist(torch.empty(2 if rank == 0 else 0, 4), context)
        except WireError as error:
            said.append(str(error))
    return said
