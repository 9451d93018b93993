"""A config in words."""

from __future__ import annotations

from collections.abc import Iterator

from torchrec_qcomm.config.qcomm_config import QCommConfig


def facts(config: QCommConfig) -> Iterator[str]:
    """What a config says besides its policy: a line each, with TorchRec's part where it says nothing."""
    size = "TorchRec's default" if config.batch_size is None else f"{config.batch_size:,} per rank"
    yield f"batch size: {size}"
    if (block := config.topology) is None:
        yield "topology:   that of the running job"
    else:
        rates = [
            f"{rate:g} GB/s {where}"
            for rate, where in ((block.intra_host_gb_per_s, "inside a host"), (block.inter_host_gb_per_s, "between hosts"))
            if rate is not None
        ]
        shape = f"{block.hosts} x {block.devices_per_host} {block.device or 'devices'}"
        rates += [] if block.memory_gb is None else [f"{block.memory_gb:g} GB of memory"]
        yield "topology:   " + ", ".join([f"{shape} = {block.world_size} ranks", *rates])
    if config.hierarchical_row_wise:
        yield "row-wise:   summed inside each host before it crosses hosts"
    if config.tables:
        rows = sum(table.rows for table in config.tables)
        yield f"tables:     {len(config.tables)}, {rows:,} rows"
