"""A training script that does not know this plugin: TorchRec's own sharders, planner and pipeline, on random clicks.

    torchrun --standalone --nproc_per_node 2 examples/one_line_swap.py

To quantize its embedding exchange, import the plugin and change the line that is marked:

    import torchrec_qcomm as qc
    sharders = qc.get_sharders("configs/uniform_fp8.yaml")
"""

from __future__ import annotations

import gc

import torch
import torch.distributed as dist
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.datasets.utils import Batch
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.optim.keyed import KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

ROWS, DIM, DENSE, BATCH, STEPS = (2_000, 300, 5_000, 40), 16, 8, 96, 60


def clicks(seed: int) -> Batch:
    """One rank's batch of random samples; a click is likelier for odd ids of the second feature."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randint(rows, (BATCH,), generator=random) for rows in ROWS])
    odds = torch.where(ids[1] % 2 == 1, 0.8, 0.2)
    return Batch(
        dense_features=torch.randn(BATCH, DENSE, generator=random),
        sparse_features=KeyedJaggedTensor(
            keys=[f"f{i}" for i in range(len(ROWS))],
            values=ids.flatten(),
            lengths=torch.ones(ids.numel(), dtype=torch.int32),
        ),
        labels=torch.bernoulli(odds, generator=random),
    )


def train(device: torch.device) -> list[float]:
    """Shard and train; the losses of all steps."""
    rank = dist.get_rank()
    torch.manual_seed(0)

    tables = [
        EmbeddingBagConfig(name=f"t{i}", feature_names=[f"f{i}"], num_embeddings=rows, embedding_dim=DIM)
        for i, rows in enumerate(ROWS)
    ]
    collection = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    apply_optimizer_in_backward(RowWiseAdagrad, collection.parameters(), {"lr": 0.1})
    model = DLRMTrain(DLRM(collection, DENSE, [32, DIM], [32, 1]))

    constraints = {table.name: ParameterConstraints(sharding_types=["table_wise"]) for table in tables}
    planner = EmbeddingShardingPlanner(constraints=constraints)
    sharders = get_default_sharders()  # <- the line to change
    plan = planner.collective_plan(model, sharders, dist.group.WORLD)
    model = DistributedModelParallel(model, device=device, plan=plan, sharders=sharders)

    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(model.named_parameters())), lambda params: torch.optim.Adam(params, lr=0.01)
    )
    pipeline = TrainPipelineSparseDist(model, dense, device)
    batches = (clicks(seed=1_000 * rank + step) for step in range(STEPS))
    return [pipeline.progress(batches)[0].item() for _ in range(STEPS)]


def main() -> None:
    """Join the process group, train, and print the loss at the start and at the end."""
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    losses = train(torch.device("cuda", dist.get_rank()) if cuda else torch.device("cpu"))
    if dist.get_rank() == 0:
        print(f"loss {losses[0]:.6f} at the start, {sum(losses[-10:]) / 10:.6f} at the end")
    gc.collect()  # modules that still exist would keep the group alive, and then gloo may abort the process at its exit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
