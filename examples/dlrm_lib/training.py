"""One training run: shard, train one or more epochs through TorchRec's pipeline, score the held-out samples."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torchrec.datasets.utils import Batch
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from dlrm_lib.data import ClickData, batches
from dlrm_lib.evaluation import Quality, quality
from dlrm_lib.model import Optimizers, build_model, dense_optimizer, set_initial_weights, train_embeddings_in_backward
from dlrm_lib.ranks import Ranks

WARM_UP = 5  # steps that are left out of the median: the pipeline fills, caches are cold


@dataclass(frozen=True, slots=True)
class Settings:
    """What the arms of a comparison share.

    Attributes:
        batch_size: per rank.
        epochs: passes over the training part.
        seed: of the initial weights and of the order of the samples.
        dim: of every table.
        optimizers: and their learning rates.
        limit_batches: train and score at most so many batches (for tests).
        report_every: steps between two lines of progress; 0 is silent.
    """

    batch_size: int
    epochs: int = 1
    seed: int = 0
    dim: int = 32
    optimizers: Optimizers = field(default_factory=Optimizers)
    limit_batches: int | None = None
    report_every: int = 50


@dataclass(frozen=True, slots=True)
class Run:
    """What one training run gave.

    Attributes:
        quality: on the held-out samples of all ranks.
        losses: training loss of each step, mean over ranks' batches.
        step_ms: wall time of each step on this rank, milliseconds.
        seconds: wall time of the training alone.
        traffic: what the counters counted during training, over all ranks; None without counters.
    """

    quality: Quality
    losses: list[float]
    step_ms: list[float]
    seconds: float
    traffic: Any = None

    @property
    def median_step_ms(self) -> float:
        """Median wall time of a step, the first ones left out."""
        return statistics.median(self.step_ms[WARM_UP:] or self.step_ms)


def train(
    data: ClickData,
    settings: Settings,
    ranks: Ranks,
    plan: ShardingPlan,
    sharders: Sequence[ModuleSharder],
    *,
    counters: Callable[[torch.nn.Module], AbstractContextManager] | None = None,
    label: str = "",
) -> Run:
    """Train a fresh model with ``sharders`` and score it.

    Args:
        data: the same on every rank.
        settings: of the run.
        ranks: of the process group.
        plan: where each table goes.
        sharders: TorchRec's own, or the plugin's.
        counters: opens the byte counters of the sharded model for the time of training: ``qc.measure_traffic``.
        label: of the progress lines.
    """
    unsharded = build_model(data, dim=settings.dim, seed=settings.seed)
    train_embeddings_in_backward(unsharded, settings.optimizers)
    model = DistributedModelParallel(unsharded, device=ranks.device, plan=plan, sharders=list(sharders))
    set_initial_weights(model, data.tables, settings.seed)
    pipeline = TrainPipelineSparseDist(model, dense_optimizer(model, settings.optimizers), ranks.device)

    losses: list[torch.Tensor] = []
    step_ms: list[float] = []
    with counters(model) if counters else nullcontext() as counting:
        began = time.perf_counter()
        model.train()
        for epoch in range(settings.epochs):
            steps = _steps(data, settings, ranks, epoch)
            last = began if epoch == 0 else time.perf_counter()
            for loss, _, _ in _results(pipeline, steps):
                if ranks.device.type == "cuda":
                    torch.cuda.synchronize()
                now = time.perf_counter()
                losses.append(loss)
                step_ms.append(1e3 * (now - last))
                last = now
                if settings.report_every and len(losses) % settings.report_every == 0:
                    recent = torch.stack(losses[-settings.report_every :]).mean().item()
                    rate = len(losses) * settings.batch_size * ranks.world_size / (now - began)
                    ranks.say(
                        f"  {label:<10} epoch {epoch + 1} step {len(losses):>6}  loss {recent:.4f}  {rate:>9,.0f} samples/s"
                    )
        seconds = time.perf_counter() - began
        traffic = counting.gather(ranks.group) if counting is not None else None
    logits, labels = score(pipeline, model, data, settings, ranks)
    mean_losses = np.mean(ranks.gather(torch.stack(losses).tolist()), axis=0)
    return Run(quality(logits, labels), mean_losses.tolist(), step_ms, seconds, traffic)


def score(
    pipeline: TrainPipelineSparseDist, model: DistributedModelParallel, data: ClickData, settings: Settings, ranks: Ranks
) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels of the held-out samples, each rank's share scored by that rank and then put together."""
    model.eval()
    steps = batches(
        data,
        data.test,
        batch_size=4 * settings.batch_size,  # nothing is kept for a backward
        rank=ranks.rank,
        world_size=ranks.world_size,
        limit=settings.limit_batches,
    )
    with torch.no_grad():
        mine = [(logits.float().cpu(), labels.cpu()) for _, logits, labels in _results(pipeline, steps)]
    logits, labels = (torch.cat(part).numpy() for part in zip(*mine, strict=True))
    every = ranks.gather((logits, labels))
    return tuple(np.concatenate(part) for part in zip(*every, strict=True))


def _steps(data: ClickData, settings: Settings, ranks: Ranks, epoch: int) -> Iterator[Batch]:
    return batches(
        data,
        data.train,
        batch_size=settings.batch_size,
        rank=ranks.rank,
        world_size=ranks.world_size,
        shuffle_seed=1000 * settings.seed + epoch,
        limit=settings.limit_batches,
    )


def _results(pipeline: TrainPipelineSparseDist, steps: Iterator[Batch]) -> Iterator[Any]:
    """What the pipeline returns for each batch, until there are none left."""
    while True:
        try:
            yield pipeline.progress(steps)
        except StopIteration:
            return
