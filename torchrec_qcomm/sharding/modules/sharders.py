"""Which of TorchRec's sharders have a counterpart here."""

from __future__ import annotations

from collections.abc import Callable
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
