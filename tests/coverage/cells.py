"""What the ranks do for a row of the tables: one step for each case, with our sharder or TorchRec's own."""

from __future__ import annotations

import logging
import os
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.types import NoWait

from tests.convergence.faults import factory
from tests.coverage.cases import CASES, CODECS, NATIVE, Case, plan_of
from tests.coverage.reference import LEARNING_RATE, Bounds, reference
from tests.sharding.scenarios.pooled_collections import CPU, _in_feature_order, _over, shard
from tests.sharding.scenarios.sequences import flat, shard_sequences
from tests.sharding.scenarios.tables import TableSpec, collection, local_weights
from torchrec_qcomm.errors import ShardingError
from torchrec_qcomm.sharding import QCommEmbeddingBagCollectionSharder, QCommEmbeddingCollectionSharder

SGD = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": LEARNING_RATE}
COLLECTIVES = {
    "all_to_all_single": "all-to-all",
    "reduce_scatter_tensor": "reduce-scatter",
    "reduce_scatter": "reduce-scatter",
    "all_gather_into_tensor": "all-gather",
    "all_gather": "all-gather",
}
"""Functions of torch.distributed that TorchRec's exchanges use, and what they do."""
HERE = str(Path(__file__).parent)

Faults = Mapping[str, Callable[[torch.Tensor], torch.Tensor]]


@dataclass
class Answer:
    """What one rank saw in one cell.

    Attributes:
        failed: ``(phase, message)`` of the first phase that failed, on the lowest rank on which it did.
        refused: on this rank the failure is a `ShardingError`.
        forward, backward: squared differences to the reference, and its squares.
        over: the largest error of an element as a share of its bound, forward and backward.
        seen: dtypes of floats and codes that collectives were given for the exchange, by direction and collective.
    """

    failed: tuple[str, str] | None = None
    refused: bool = False
    forward: tuple[float, float] | None = None
    backward: tuple[float, float] | None = None
    over: tuple[float, float] | None = None
    seen: dict[tuple[str, str], set[str]] = field(default_factory=dict)


class Ranks:
    """The ranks of a task, who tell each other through a file how they fare: after a failure collectives hang.

    Args:
        folder: of this task alone, seen by all ranks.
        patience: seconds until a collective without its peers fails.
    """

    def __init__(self, rank: int, world: int, folder: str, patience: float) -> None:
        self.rank, self._world, self._folder, self._patience = rank, world, folder, timedelta(seconds=patience)
        self._store = dist.FileStore(os.path.join(folder, "fares"), world)
        self._store.set_timeout(timedelta(seconds=patience + 60))
        self._asked = self._groups = 0

    def failure(self, message: str | None) -> str | None:
        """The message of the lowest rank that has one, first of those that did not wait for another. All ranks must ask."""
        self._asked += 1
        self._store.set(f"{self._asked}/{self.rank}", message or "")
        said = [self._store.get(f"{self._asked}/{rank}").decode() for rank in range(self._world)]
        waited = ("Timed out waiting", "Connection closed by peer")
        return min(filter(None, said), key=lambda text: any(words in text for words in waited), default=None)

    def meet(self) -> None:
        """Wait until all ranks have come here."""
        self.failure(None)

    def fresh_group(self) -> None:
        """A new process group: one in which a collective failed stays broken."""
        self.meet()  # a group that some have left while others still connect fails them
        self._groups += 1
        dist.destroy_process_group()
        place = f"file://{os.path.join(self._folder, f'group{self._groups}')}"
        dist.init_process_group("gloo", place, rank=self.rank, world_size=self._world, timeout=self._patience)


def measure(
    rank: int,
    world: int,
    kind: str,
    sharding: str,
    codec: str,
    names: Sequence[str],
    native: bool,
    folder: str,
    patience: float,
    broken: Faults | None = None,
) -> dict[str, Answer]:
    """An answer for each case in ``names``; nothing raises but what is wrong with the measurement itself.

    Args:
        rank, world: of the default process group, which is replaced.
        kind, sharding, codec: the row.
        names: of the cases.
        native: TorchRec's own sharder, else ours.
        folder, patience: as for `Ranks`.
        broken: codecs to replace by broken ones, to see whether it is noticed.
    """
    ranks = Ranks(rank, world, folder, patience)
    logging.disable(logging.WARNING)  # TorchRec warns of every codec that it replaces
    try:
        with warnings.catch_warnings(action="ignore"):
            ranks.fresh_group()
            answers = {name: _cell(ranks, _Step(rank, kind, sharding, codec, CASES[name], native, broken)) for name in names}
            ranks.meet()
            return answers
    finally:
        logging.disable(logging.NOTSET)


def _cell(ranks: Ranks, run: _Step) -> Answer:
    answer = run.answer
    for phase in (run.shard, run.forward, run.backward):
        message = None
        try:
            phase()
        except Exception as error:
            if traceback.extract_tb(error.__traceback__)[-1].filename.startswith(HERE):
                raise  # a fault of the measurement
            answer.refused = isinstance(error, ShardingError)
            message = f"{type(error).__name__}: {error}"
        # The others may have come to no harm here; in the next collective they would wait for ever.
        if first := ranks.failure(message):
            answer.failed = (phase.__name__, first)
            ranks.fresh_group()
            return answer
    if not run.native:
        answer.over = run.over()
    return answer


class _Step:
    """One step of one cell, phase by phase; fills in ``answer``."""

    def __init__(
        self, rank: int, kind: str, sharding: str, codec: str, case: Case, native: bool, broken: Faults | None
    ) -> None:
        self._rank, self._kind, self._sharding, self._codec, self._case = rank, kind, sharding, codec, case
        self.native, self._broken = native, broken
        self.answer, self._ref = Answer(), reference(kind, case)
        self._plan = plan_of(kind, sharding, case)

    def shard(self) -> None:
        """Shard the collection."""
        sharder = self._sharder()
        if self._kind == "ec":
            self._sharded = shard_sequences(sharder, self._plan, self._ref.tables)
        else:
            self._sharded = shard(sharder, collection(self._ref.tables, weighted=self._case.weighted), self._plan)

    def forward(self) -> None:
        """Look a batch up, and compare."""
        sharded, features = self._sharded, self._case.features_of(self._kind, self._rank)
        context = sharded.create_context()
        mine = sharded.input_dist(context, features).wait().wait()
        with self._spied("forward"):
            started = sharded.compute_and_output_dist(context, mine)
            # What the exchange brings; TorchRec loses gradients on CPU between here and the result of a variable batch.
            self._arrived = started._awaitables_per_sharding[0].wait() if self._ref.at_exchange else None
            if self._arrived is not None:
                started._awaitables_per_sharding[0] = NoWait(self._arrived)
            result = started.wait()
        self._out = flat(result) if self._kind == "ec" else _in_feature_order(result)
        self._started = started
        self.answer.forward = _squares(self._out.detach(), self._ref.output(self._rank))

    def backward(self) -> None:
        """Pull the gradients back, and compare what was applied."""
        before = local_weights(self._sharded)
        gradients = self._ref.gradients[self._rank]
        with self._spied("backward"):
            if self._arrived is None:
                self._out.backward(self._ref.output(self._rank, gradients))
            elif self.native:
                # As a user would: at the result.
                rows = self._ref.rows[self._rank]
                self._out.backward(torch.cat([g[r.inverse] for g, r in zip(gradients, rows, strict=True)]))
            else:
                self._arrived.backward(self._in_order_of_arrival(gradients))
        after = local_weights(self._sharded)
        self._applied = {key: (before[key] - after[key]) / LEARNING_RATE for key in before}
        parts = [_squares(self._applied[key], self._ref.applied[table.name][part]) for key, table, part in self._mine()]
        self.answer.backward = (sum(a for a, _ in parts), sum(b for _, b in parts))

    def over(self) -> tuple[float, float]:
        """The errors of single elements as shares of their bounds."""
        bounds = Bounds(self._kind, self._sharding, self._case, CODECS[self._codec], self._rank)
        forward = _over(self._out.detach() - self._ref.output(self._rank), bounds.output())
        limits = bounds.applied()
        for limit in limits.values():
            dist.all_reduce(limit)
        backward = [
            _over(self._applied[key] - self._ref.applied[t.name][part], (limits[t.name] + bounds.rounding(t))[part])
            for key, t, part in self._mine()
        ]
        return forward, max(backward)

    def _sharder(self) -> Any:
        if not self.native:
            ours = QCommEmbeddingCollectionSharder if self._kind == "ec" else QCommEmbeddingBagCollectionSharder
            return ours(CODECS[self._codec], codec_factory=factory(self._broken or {}), fused_params=SGD)
        precision = CommType(NATIVE[self._codec])
        registry = get_qcomm_codecs_registry(QCommsConfig(precision, precision), device=CPU)
        theirs = EmbeddingCollectionSharder if self._kind == "ec" else EmbeddingBagCollectionSharder
        return theirs(fused_params=SGD, qcomm_codecs_registry=registry)

    def _mine(self) -> Iterator[tuple[tuple[str, int], TableSpec, tuple[slice, slice]]]:
        """This rank's shards: the key among the local weights, the table, and which part of it."""
        for t in self._ref.tables:
            for piece in self._plan[t.name].sharding_spec.shards:  # type: ignore[union-attr]
                if piece.placement.rank() == self._rank:
                    (row, column), (rows, width) = piece.shard_offsets, piece.shard_sizes
                    yield (t.name, column), t, (slice(row, row + rows), slice(column, column + width))

    def _in_order_of_arrival(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """Gradients of the exchange's result: in the order of owners, and of their features and columns."""
        by_name = dict(zip([f for t in self._ref.tables for f in t.features], gradients, strict=True))
        names, shards = self._started._embedding_names_per_sharding[0], self._started._features_to_permute_indices or {}
        parts: list[torch.Tensor] = [torch.empty(0)] * len(names)
        for name, gradient in by_name.items():
            places = [i for i, other in enumerate(names) if other == name]
            places = [places[i] for i in shards[name]] if name in shards else places
            for place, part in zip(places, gradient.chunk(len(places), dim=1), strict=True):
                parts[place] = part
        return torch.cat(parts)

    @contextmanager
    def _spied(self, direction: str) -> Iterator[None]:
        """Note what collectives are given."""
        real = {name: getattr(dist, name) for name in COLLECTIVES}

        def spy(name: str) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                given = list(signature(real[name]).bind(*args, **kwargs).arguments.values())[1]  # behind the output
                for tensor in given if isinstance(given, list) else [given]:
                    self.answer.seen.setdefault((direction, name), set()).add(str(tensor.dtype).removeprefix("torch."))
                return real[name](*args, **kwargs)

            return call

        for name in COLLECTIVES:
            setattr(dist, name, spy(name))
        try:
            yield
        finally:
            for name, function in real.items():
                setattr(dist, name, function)


def _squares(got: torch.Tensor, want: torch.Tensor) -> tuple[float, float]:
    got, want = got.double(), want.double()
    return float((got - want).square().sum()), float(want.square().sum())
