"""Which of TorchRec's sharders have a counterpart here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fp_embeddingbag import FeatureProcessedEmbeddingBagCollectionSharder
from torchrec.distributed.mc_embedding import ManagedCollisionEmbeddingCollectionSharder
from torchrec.distributed.mc_embeddingbag import ManagedCollisionEmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder

from torchrec_qcomm.policy import Policy
from torchrec_qcomm.sharding.modules.embedding import QCommEmbeddingCollectionSharder
from torchrec_qcomm.sharding.modules.embedding_bag import QCommEmbeddingBagCollectionSharder

_COUNTERPARTS: dict[type, Callable[[QCommEmbeddingBagCollectionSharder, QCommEmbeddingCollectionSharder], Any]] = {
    EmbeddingBagCollectionSharder: lambda bags, _: bags,
    FeatureProcessedEmbeddingBagCollectionSharder: lambda bags, _: FeatureProcessedEmbeddingBagCollectionSharder(bags),
    EmbeddingCollectionSharder: lambda _, sequences: sequences,
    ManagedCollisionEmbeddingBagCollectionSharder: lambda bags, _: ManagedCollisionEmbeddingBagCollectionSharder(bags),
    ManagedCollisionEmbeddingCollectionSharder: lambda _, sequences: ManagedCollisionEmbeddingCollectionSharder(sequences),
}
"""By the exact type of TorchRec's sharder. Modules that hold a collection are sharded by TorchRec, with our sharder inside."""


def default_sharders(
    policy: Policy | None = None, *, hierarchical_row_wise: bool = False, **arguments: Any
) -> list[tuple[ModuleSharder[nn.Module], bool]]:
    """TorchRec's default sharders, in its order, each one replaced that has a counterpart here.

    What a newer TorchRec adds stays its own.

    Args:
        policy: of all counterparts; its rules are checked over the tables of all of them.
        hierarchical_row_wise: as for `QCommEmbeddingBagCollectionSharder`.
        arguments: of `QCommSharder`.

    Returns:
        Each sharder, and whether what it shards is exchanged by this package.
    """
    tables: set[str] = set()
    bags = QCommEmbeddingBagCollectionSharder(
        policy, hierarchical_row_wise=hierarchical_row_wise, sharded_tables=tables, **arguments
    )
    sequences = QCommEmbeddingCollectionSharder(policy, sharded_tables=tables, **arguments)
    found = []
    for native in get_default_sharders():
        make = _COUNTERPARTS.get(type(native))
        ours = native if make is None else cast("ModuleSharder[nn.Module]", make(bags, sequences))
        found.append((ours, make is not None))
    return found


def sharders_that_take(model: nn.Module, paths: Iterable[str]) -> dict[str, tuple[ModuleSharder[nn.Module], bool]]:
    """For each path of a module, the default sharder that shards it, alone or as a part of what it is in.

    Args:
        model: not sharded yet.
        paths: of modules in it. Those that no sharder takes are left out.

    Returns:
        As `default_sharders` does: each sharder, and whether what it shards is exchanged by this package.
    """
    by_type = {sharder.module_type: (sharder, is_ours) for sharder, is_ours in default_sharders()}
    taken: dict[str, tuple[ModuleSharder[nn.Module], bool]] = {}
    for path, module in model.named_modules():  # a module comes before what is inside of it
        if type(module) in by_type and not any(_is_in(path, outer) for outer in taken):
            taken[path] = by_type[type(module)]
    return {path: found for path in paths for outer, found in taken.items() if _is_in(path, outer)}


def _is_in(path: str, outer: str) -> bool:
    return path == outer or outer == "" or path.startswith(f"{outer}.")
