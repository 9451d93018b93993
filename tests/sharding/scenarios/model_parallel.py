"""A whole model under DistributedModelParallel beside an unsharded one on the global batch; what ranks do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardedModule
from torchrec.modules.embedding_configs import DataType

from tests.sharding.scenarios.checkpoints import flat
from tests.sharding.scenarios.dlrm import (
    Setting,
    distributed,
    make_batch,
    optimizer_of,
    plan_of,
    sharded_modules,
    train,
    unsharded,
)
from tests.sharding.scenarios.tables import _cut

Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def momentum(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """For the dense part; small differences of gradients stay small, unlike Adam's."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def beside_unsharded(
    rank: int, world: int, setting: Setting, sizes: Sequence[int], steps: int, tables_like: Optimizer
) -> dict[str, Any]:
    """Train both; how far apart are they, as a share of how far the weights have moved?

    Args:
        rank, world: of the process.
        setting: of the sharded model; the unsharded one has FP32 tables.
        sizes: batch of each rank. Gradients are means over the ranks of the gradients of the ranks' mean losses.
        steps: of training.
        tables_like: does what the fused optimizer does; data-parallel tables have the dense part's.
    """
    sharded = distributed(setting)
    optimizer = optimizer_of(sharded, momentum)
    single = unsharded(replace(setting, data_type=DataType.FP32))
    tables = {n: p for n, p in single.named_parameters() if n.startswith(("ebc.", "ec."))}
    if setting.data_type != DataType.FP32:  # start from the same values
        for weight in tables.values():
            weight.data = weight.data.half().float()
    start = {name: p.detach().clone() for name, p in single.named_parameters()}
    fused = [p for name, p in tables.items() if setting.kinds[name.split(".")[-2]] != "data_parallel"]
    others = [p for p in single.parameters() if all(p is not q for q in fused)]
    optimizers = [momentum(others), *([tables_like(fused)] if fused else [])]

    off = {"logits": 0.0}
    for i in range(steps):
        batches = [make_batch(size, seed=100 * i + r) for r, size in enumerate(sizes)]
        (logits,) = train(sharded, optimizer, [batches[rank]])
        losses, outs = zip(*[single(batch) for batch in batches], strict=True)
        for each in optimizers:
            each.zero_grad()
        torch.stack(losses).mean().backward()
        for each in optimizers:
            each.step()
        off["logits"] = max(off["logits"], float((logits - outs[rank]).abs().max()))
    moved = {name: p.detach() - start[name] for name, p in single.named_parameters()}
    for name, value in sharded.state_dict().items():
        whole, scale = single.get_parameter(name).detach(), float(moved[name].abs().max())
        pieces = [(value, whole)]
        if isinstance(value, ShardedTensor):
            pieces = [(s.tensor, _cut(whole, s.metadata)) for s in value.local_shards()]
        for mine, reference in pieces:
            # 16 bits round anew every step.
            rounding = steps * 2.0**-11 * reference.abs() if mine.dtype == torch.float16 else 0.0
            error = ((mine.detach().float() - reference).abs() - rounding).clamp_min(0.0)
            off[name] = max(off.get(name, 0.0), float(error.max()) / scale)
    return {
        "off": off,
        "moved": all(float(delta.abs().max()) > 0 for delta in moved.values()),
        "modules": sorted({type(module).__name__ for module in sharded_modules(sharded)}),
        "dtypes": sorted({str(v.dtype) for n, v in sharded.state_dict().items() if n.startswith(("ebc.", "ec."))}),
    }


def named_like_native(rank: int, world: int, setting: Setting, meta: bool) -> dict[str, Any]:
    """What a user or a checkpoint can see of ours and of TorchRec's own model: which parts are equal?"""
    ours, native = (distributed(replace(setting, quantized=quantized), meta=meta) for quantized in (True, False))

    def seen(model: DistributedModelParallel) -> dict[str, Any]:
        optimizer = optimizer_of(model)

        def shapes(state: dict[str, Any]) -> list[Any]:
            return [(name, type(leaf).__name__, getattr(leaf, "shape", leaf)) for name, leaf in flat(state).items()]

        return {
            "state dict": shapes(model.state_dict()),
            "dtypes": [(n, getattr(v, "dtype", None)) for n, v in model.state_dict().items()],
            "parameters": [(n, p.shape, p.dtype, p.device) for n, p in model.named_parameters()],
            "buffers": [(n, b.shape) for n, b in model.named_buffers()],
            "bare parameters": [n for n, _ in model.bare_named_parameters()],
            "modules that are sharded": [n for n, m in model.named_modules() if isinstance(m, ShardedModule)],
            "fused optimizer": shapes(model.fused_optimizer.state_dict()),
            "optimizer": shapes(optimizer.state_dict()),
            "plan": str(model.plan),
        }

    a, b = seen(ours), seen(native)
    return {"some": len(a["state dict"]) + len(a["optimizer"]), **{what: a[what] == b[what] for what in a}}


def bfloat16(rank: int, world: int, how: dict[str, Any]) -> list[str]:
    """What TorchRec's own model and ours say to tables, or lookups, of BF16."""
    fused = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.1}
    if "output_dtype" in how:
        fused |= how
    setting = Setting(plan_of("table_wise"), False, fused, data_type=how.get("data_type", DataType.FP32))
    said = []
    for quantized in (False, True):
        model = distributed(replace(setting, quantized=quantized))
        try:
            model(make_batch(4, seed=rank))
            said.append("looked up")
        except NotImplementedError as error:
            said.append(str(error))
    return said
