"""What TorchRec tells of a collection that is to be sharded: its tables, and where their shards go."""

from __future__ import annotations

from typing import TypeAlias

from torchrec.distributed.types import ParameterSharding
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig

TableConfig: TypeAlias = EmbeddingBagConfig | EmbeddingConfig
"""A table, pooled or not."""

ModulePlan = dict[str, ParameterSharding]
"""By name of the table, how it is sharded: TorchRec's plan of one collection."""
