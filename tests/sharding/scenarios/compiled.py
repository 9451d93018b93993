"""Models under torch.compile; what ranks do, and what the compiler says that it took apart."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo
from torch._dynamo.utils import clear_compilation_metrics, counters, get_compilation_metrics
from torchrec.distributed.model_parallel import DistributedModelParallel

from tests.sharding.scenarios.checkpoints import flat, same, state_of
from tests.sharding.scenarios.dlrm import Dlrm, Setting, distributed, make_batch, optimizer_of, train


def _compile_dense(model: DistributedModelParallel) -> None:
    dlrm: Dlrm = model.module
    dlrm.dense_part = torch.compile(dlrm.dense_part, backend="aot_eager", fullgraph=True)  # type: ignore[method-assign]


def _compile_whole(model: DistributedModelParallel) -> None:
    model.compile(backend="eager")


def beside_eager(rank: int, world: int, setting: Setting, whole: bool, steps: int) -> dict[str, Any]:
    """Train compiled and not; what differs, what was compiled, and where its graph was broken.

    Args:
        rank, world: of the process.
        setting: of the model.
        whole: compile all of it, else the dense part, which must be one graph then.
        steps: of training.
    """
    torch._dynamo.reset()
    counters.clear()
    clear_compilation_metrics()
    results = []
    for compile_it in (_compile_whole if whole else _compile_dense, None):
        model = distributed(setting)
        optimizer = optimizer_of(model)
        if compile_it:
            compile_it(model)
        logits = train(model, optimizer, [make_batch(5, seed=10 * i + rank) for i in range(steps)])
        results.append((logits, flat(state_of(model, optimizer))))
    (logits, state), (eager_logits, eager_state) = results
    frames = [(metric.co_filename or "", metric.co_name) for metric in get_compilation_metrics()]
    answer = {
        "logits": all(torch.equal(a, b) for a, b in zip(logits, eager_logits, strict=True)),
        "state": same(state, eager_state),
        "graphs": counters["stats"]["unique_graphs"],
        "breaks": dict(counters["graph_break"]),
        "frames of the package": [(file, name) for file, name in frames if "/torchrec_qcomm/" in file],
        "frames of TorchRec": len([name for file, name in frames if "/torchrec/" in file]),
    }
    torch._dynamo.reset()
    return answer
