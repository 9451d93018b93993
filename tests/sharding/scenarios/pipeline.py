"""TorchRec's pipeline, which sends the ids of the next batch while this one is trained; what ranks do with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torchrec.distributed import comm_ops
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.optim.keyed import CombinedOptimizer

from tests.sharding.scenarios.checkpoints import flat, same, state_of
from tests.sharding.scenarios.dlrm import Batch, Setting, distributed, make_batch, optimizer_of, train
from tests.sharding.scenarios.model_parallel import momentum


def pipelined(model: DistributedModelParallel, optimizer: CombinedOptimizer, batches: Sequence[Batch]) -> list[torch.Tensor]:
    """Train to the end of the data; the logits of each batch."""
    pipeline = TrainPipelineSparseDist(model, optimizer, torch.device("cpu"), execute_all_batches=True)
    data, logits = iter(batches), []
    while True:
        try:
            logits.append(pipeline.progress(data).detach())
        except StopIteration:
            break
    # A module that the pipeline could not take apart would be run as it is, and nothing would be tested.
    assert len(pipeline._pipelined_modules) == len([n for n in ("ebc", "ec") if hasattr(model.module, n)])
    return logits


def beside_plain(rank: int, world: int, setting: Setting, sizes: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Train with the pipeline, without it, and with TorchRec's own sharders without it.

    TorchRec's asynchronous reduce-scatters cannot do uneven batches on gloo, and its synchronous collectives cannot do
    sequences, so a model that has both it cannot train.

    Args:
        rank, world: of the process.
        setting: of the model.
        sizes: for each step, the batch of each rank.
    """
    batches = [make_batch(step[rank], seed=100 * i + rank) for i, step in enumerate(sizes)]
    results = []
    ways = [(pipelined, setting), (train, setting)]
    if len(setting.collections) == 1:
        ways.append((train, replace(setting, quantized=False)))
    for how, one in ways:
        model = distributed(one)
        optimizer = optimizer_of(model, momentum)
        start = flat(state_of(model, optimizer))
        comm_ops.set_use_sync_collectives(not one.quantized and one.collections == ("bags",))
        try:
            logits = how(model, optimizer, batches)
        finally:
            comm_ops.set_use_sync_collectives(False)
        results.append((logits, flat(state_of(model, optimizer)), start))
    (logits, state, start), (plain_logits, plain_state, _), (native_logits, native_state, _) = (*results, results[1])[:3]
    numbers = [name for name, leaf in state.items() if isinstance(leaf, torch.Tensor) and leaf.numel()]
    return {
        "steps": len(logits),
        "sizes": [out.shape[0] for out in logits],
        "logits": all(torch.equal(a, b) for a, b in zip(logits, plain_logits, strict=True)),
        "state": same(state, plain_state),
        "moved": not same(state, start),
        "native logits": max(float((a - b).abs().max()) for a, b in zip(logits, native_logits, strict=True) if a.numel()),
        "native state": max(float((state[name] - native_state[name]).abs().max()) for name in numbers),
    }
