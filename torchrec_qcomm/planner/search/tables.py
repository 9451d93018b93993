"""The embedding tables of a model that is not sharded yet."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torchrec.modules.embedding_modules import EmbeddingBagCollectionInterface, EmbeddingCollectionInterface

from torchrec_qcomm.errors import PolicyError, describe
from torchrec_qcomm.policy import Table


@dataclass(frozen=True, slots=True)
class ModelTable:
    """One table of one embedding collection.

    Attributes:
        table: name, rows and dim.
        features: names of the features that look into it.
        module: path of its collection in the model.
    """

    table: Table
    features: tuple[str, ...]
    module: str


def required_tables(model: nn.Module) -> tuple[ModelTable, ...]:
    """As `model_tables`, for a model that must have some.

    Raises:
        PolicyError: it has none.
    """
    tables = model_tables(model)
    if not tables:
        todo = "Pass the model before it is sharded."
        allowed = "a model with an EmbeddingBagCollection or EmbeddingCollection"
        raise PolicyError(describe("model", "no embedding tables found", got=type(model).__name__, allowed=allowed, todo=todo))
    return tables


def model_tables(model: nn.Module) -> tuple[ModelTable, ...]:
    """All tables of all embedding collections in ``model``, in the order of its modules. Several may have one name."""
    found = []
    for path, module in model.named_modules():
        if isinstance(module, EmbeddingBagCollectionInterface):
            configs = module.embedding_bag_configs()
        elif isinstance(module, EmbeddingCollectionInterface):
            configs = module.embedding_configs()
        else:
            continue
        for config in configs:
            table = Table(config.name, config.num_embeddings, config.embedding_dim)
            found.append(ModelTable(table, tuple(config.feature_names), path))
    return tuple(found)
