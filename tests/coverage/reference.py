"""What a step must give: an unsharded FP32 computation over the global batch, and how far an exchange may be off it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn import functional
from torchrec.modules.embedding_configs import PoolingType

from tests.coverage.cases import HOSTS, WORLD, Case, plan_of
from tests.sharding.scenarios.sequences import sequence_collection
from tests.sharding.scenarios.tables import LOCAL, ROWS_DEALT_OUT, TableSpec, collection, upstream
from torchrec_qcomm import codecs
from torchrec_qcomm.codecs.base import Codec
from torchrec_qcomm.codecs.spec import CodecSpec
from torchrec_qcomm.policy import Policy, Table
from torchrec_qcomm.policy.sites import link_between

LEARNING_RATE = 1024.0
"""Of SGD: gradients as large as the weights they move, so that the update's rounding hides nothing. A power of two."""

TORCHREC_EPSILON = 1e-6
"""TorchRec adds it to the number that it divides sums by, where the mean is taken after the exchange."""


@dataclass(frozen=True)
class Rows:
    """One feature's vectors on their way to one rank.

    Attributes:
        table: that owns them.
        ids, bag, weights: ``[ids]``; a vector is the sum of the rows ``ids`` of its ``bag``, times their weights.
        sizes: ``[vectors]``, ids of each.
        inverse: ``[outputs]``, the vector that each output is: others than all in turn with a variable batch only.
    """

    table: TableSpec
    ids: torch.Tensor
    bag: torch.Tensor
    weights: torch.Tensor
    sizes: torch.Tensor
    inverse: torch.Tensor

    @property
    def divisor(self) -> torch.Tensor:
        """``[vectors, 1]``: what a sum is divided by."""
        mean = self.table.pooling == PoolingType.MEAN
        return self.sizes.clamp(min=1).float().unsqueeze(1) if mean else torch.ones(len(self.sizes), 1)

    def pooled(self, weight: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        """Sums over ``weight [rows, width]``, of the ids to ``keep``: ``[vectors, width]``."""
        keep = torch.ones_like(self.ids, dtype=torch.bool) if keep is None else keep
        values = weight[self.ids[keep]] * self.weights[keep].unsqueeze(1)
        return torch.zeros(len(self.sizes), weight.shape[1]).index_add(0, self.bag[keep], values)

    def spread(self, total: torch.Tensor, values: torch.Tensor, keep: torch.Tensor | None = None) -> None:
        """Add the gradients ``values [vectors, width]`` of sums to those of the rows, ``total [rows, width]``."""
        keep = torch.ones_like(self.ids, dtype=torch.bool) if keep is None else keep
        total.index_add_(0, self.ids[keep], values[self.bag[keep]] * self.weights[keep].unsqueeze(1))

    def gathered(self, gradient: torch.Tensor) -> torch.Tensor:
        """Gradients of outputs as those of vectors: a vector that is used several times gets the sum."""
        return torch.zeros(len(self.sizes), gradient.shape[1]).index_add(0, self.inverse, gradient)


def _rows(kind: str, case: Case, rank: int) -> list[Rows]:
    features, found = case.features_of(kind, rank), []
    inverse = dict(zip(*features.inverse_indices(), strict=True)) if case.variable else {}
    for t in case.tables(kind):
        for feature in t.features:
            jagged = features[feature]
            ids, sizes = jagged.values(), jagged.lengths()
            bag = torch.arange(len(sizes)).repeat_interleave(sizes)
            uses = inverse.get(feature, torch.arange(len(sizes)))
            if kind == "ec":  # every id is a vector, and a sample's output the vectors of its ids
                starts = sizes.cumsum(0) - sizes
                ranges = [torch.arange(int(starts[row]), int(starts[row] + sizes[row])) for row in uses]
                uses = torch.cat([torch.arange(0), *ranges])
                bag, sizes = torch.arange(len(ids)), torch.ones(len(ids), dtype=torch.int64)
            weights = jagged.weights() if case.weighted else torch.ones(len(ids))
            found.append(Rows(t, ids, bag, weights, sizes, uses))
    return found


class Reference:
    """Outputs and applied gradients of one case.

    Attributes:
        at_exchange: gradients are given to the vectors that arrive, not to the outputs.
        tables: of the collection.
        weights: ``{table: [rows, dim]}``.
        rows: for each rank, its features.
        outputs, gradients: for each rank and feature, ``[outputs, dim]``.
        applied: ``{table: [rows, dim]}``, the mean over ranks of the gradients.
        magnitude: the same with all terms of its sum positive.
    """

    def __init__(self, kind: str, case: Case) -> None:
        self.kind, self.at_exchange, self.tables = kind, kind == "ec" and case.variable, case.tables(kind)
        module = collection(self.tables, weighted=case.weighted) if kind == "ebc" else sequence_collection(self.tables)
        owners = module.embedding_bags if kind == "ebc" else module.embeddings
        self.weights = {name: owner.weight.detach().clone() for name, owner in owners.items()}
        self.rows = [_rows(kind, case, rank) for rank in range(WORLD)]
        self.gradients = [self._gradients(rank) for rank in range(WORLD)]
        self._compute()

    def output(self, rank: int, parts: list[torch.Tensor] | None = None) -> torch.Tensor:
        """A rank's output, or other ``parts`` of that shape: ``[samples, dims]``, or ``[ids, dim]`` feature by feature."""
        return torch.cat(self.outputs[rank] if parts is None else parts, dim=1 if self.kind == "ebc" else 0)

    def _gradients(self, rank: int) -> list[torch.Tensor]:
        rows = self.rows[rank]
        counts = [len(r.sizes) if self.at_exchange else len(r.inverse) for r in rows]
        if self.kind == "ec":
            return list(upstream(sum(counts), rows[0].table.dim, seed=rank).split(counts))
        dims = [r.table.dim for r in rows]
        return list(upstream(counts[0], sum(dims), seed=rank).split(dims, dim=1))

    def _compute(self) -> None:
        """One embedding bag, or embedding, for every feature, over the samples of all ranks."""
        leaves = {name: weight.clone().requires_grad_() for name, weight in self.weights.items()}
        self.magnitude = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        self.outputs: list[list[torch.Tensor]] = [[] for _ in range(WORLD)]
        ends, pulls = [], []
        for index, first in enumerate(self.rows[0]):
            everyone = [rows[index] for rows in self.rows]
            ids, sizes = (torch.cat([getattr(r, what) for r in everyone]) for what in ("ids", "sizes"))
            if self.kind == "ec":
                vectors = functional.embedding(ids, leaves[first.table.name])
            else:
                vectors = functional.embedding_bag(
                    ids,
                    leaves[first.table.name],
                    sizes.cumsum(0) - sizes,
                    mode="mean" if first.table.pooling == PoolingType.MEAN else "sum",
                    per_sample_weights=None
                    if first.table.pooling == PoolingType.MEAN
                    else torch.cat([r.weights for r in everyone]),
                )
            for rank, (r, mine) in enumerate(zip(everyone, vectors.split([len(r.sizes) for r in everyone]), strict=True)):
                out, gradient = mine[r.inverse], self.gradients[rank][index]
                self.outputs[rank].append(out.detach())
                ends.append(mine if self.at_exchange else out)
                pulls.append(gradient)
                pulled = gradient.abs() if self.at_exchange else r.gathered(gradient.abs())
                r.spread(self.magnitude[r.table.name], pulled / r.divisor / WORLD)
        torch.autograd.backward(ends, pulls)
        self.applied = {name: leaf.grad / WORLD for name, leaf in leaves.items()}


@cache
def reference(kind: str, case: Case) -> Reference:
    """The reference of a case; computed once in a process."""
    return Reference(kind, case)


@cache
def _codec(spec: CodecSpec) -> Codec:
    return codecs.get(spec)


class Bounds:
    """How far a rank's output and the applied gradients may be off: the bounds of all codecs on the way, hop by hop.

    A second hop quantizes what the first brings, so its bound is that of the value which the first codec decodes.

    Args:
        kind, sharding, case: the cell.
        policy: its codecs.
        rank: whose samples.
    """

    def __init__(self, kind: str, sharding: str, case: Case, policy: Policy, rank: int) -> None:
        self._reference, self._rank = reference(kind, case), rank
        self._plan = plan_of(kind, sharding, case)
        self._policy = policy.resolve(Table(t.name, t.rows, t.dim) for t in self._reference.tables)
        self._dealt, self._two_hops = sharding in ROWS_DEALT_OUT, sharding in ("table_row_wise", "grid_shard")

    def output(self) -> torch.Tensor:
        """For every element of the rank's output."""
        parts = []
        for rows in self._reference.rows[self._rank]:
            weight = self._reference.weights[rows.table.name]
            sent, after = self._divisors(rows)
            columns = [
                self._forward(rows, [(owner, rows.pooled(weight[:, at], keep) / sent) for owner, keep in owners])
                for at, owners in self._columns(rows)
            ]
            rounding = self._rounding(rows.table) * rows.pooled(weight.abs()) / rows.divisor
            parts.append((torch.cat(columns, dim=1) / after + rounding)[rows.inverse])
        return self._reference.output(self._rank, parts)

    def applied(self) -> dict[str, torch.Tensor]:
        """What the rank's samples add to the bounds of the applied gradients, ``{table: [rows, dim]}``."""
        ref = self._reference
        totals = {name: torch.zeros_like(weight) for name, weight in ref.weights.items()}
        for rows, gradient in zip(ref.rows[self._rank], ref.gradients[self._rank], strict=True):
            # Where rows are dealt out, TorchRec divides after the exchange, so the gradients of sums travel.
            sent, after = self._divisors(rows)
            pulled = (gradient if ref.at_exchange else rows.gathered(gradient)) / after
            for at, owners in self._columns(rows):
                for owner, keep in owners:
                    bound = self._backward(rows.table.name, owner, owners[0][0], pulled[:, at])
                    rows.spread(totals[rows.table.name][:, at], bound / sent, keep)
        return totals

    def rounding(self, table: TableSpec) -> torch.Tensor:
        """What the sums and the update may round off the applied gradient, ``[rows, dim]``."""
        weight, applied = self._reference.weights[table.name].abs(), self._reference.applied[table.name].abs()
        sums = self._rounding(table) * self._reference.magnitude[table.name]
        return sums + 2.0**-22 * (2 * weight / LEARNING_RATE + applied)

    def _rounding(self, table: TableSpec) -> float:
        """Of FP32 sums in another order, as a share of what is added up."""
        return 2.0**-20 + (TORCHREC_EPSILON if self._dealt and table.pooling == PoolingType.MEAN else 0.0)

    def _divisors(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """What sums are divided by before they travel, and after."""
        one = torch.ones(1, 1)
        return (one, rows.divisor) if self._dealt else (rows.divisor, one)

    def _columns(self, rows: Rows) -> list[tuple[slice, list[tuple[int, torch.Tensor]]]]:
        """The column shards of a table: their columns, and of every owner which ids it has."""
        found: dict[tuple[int, int], list[tuple[int, torch.Tensor]]] = {}
        for shard in self._plan[rows.table.name].sharding_spec.shards:  # type: ignore[union-attr]
            (row, column), (count, width) = shard.shard_offsets, shard.shard_sizes
            keep = (rows.ids >= row) & (rows.ids < row + count)
            found.setdefault((column, width), []).append((shard.placement.rank(), keep))
        return [(slice(column, column + width), owners) for (column, width), owners in sorted(found.items())]

    def _at(self, table: str, direction: Any, owner: int, sample: int) -> Codec:
        return _codec(self._policy.codec(table, direction, link_between(owner, sample, LOCAL)))

    def _relay(self, owner: int) -> int:
        """The rank of the owner's host through which this one's samples go."""
        return owner // LOCAL * LOCAL + self._rank % LOCAL

    def _forward(self, rows: Rows, shares: list[tuple[int, torch.Tensor]]) -> torch.Tensor:
        table = rows.table.name
        if not self._two_hops:
            return _sum(self._at(table, "forward", owner, self._rank).error_bound(share) for owner, share in shares)
        relay = self._relay(shares[0][0])
        within = [(self._at(table, "forward", owner, relay), share) for owner, share in shares]
        arrived = _sum(_there_and_back(codec, share) for codec, share in within)
        across = self._at(table, "forward", relay, self._rank).error_bound(arrived)
        return _sum(codec.error_bound(share) for codec, share in within) + across

    def _backward(self, table: str, owner: int, first: int, gradient: torch.Tensor) -> torch.Tensor:
        if not self._two_hops:
            return self._at(table, "backward", owner, self._rank).error_bound(gradient) / WORLD
        relay = self._relay(first)
        across = self._at(table, "backward", relay, self._rank)
        arrived = _there_and_back(across, gradient) / HOSTS
        within = self._at(table, "backward", owner, relay).error_bound(arrived)
        return (across.error_bound(gradient) / HOSTS + within) / LOCAL


def _there_and_back(codec: Codec, values: torch.Tensor) -> torch.Tensor:
    return codec.decode(codec.encode(values), values.shape[1])


def _sum(tensors: Any) -> torch.Tensor:
    return torch.stack(list(tensors)).sum(dim=0)
