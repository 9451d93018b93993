"""TorchRec's sharders, sharded modules and output dists with the exchange replaced; must only subclass, never copy or patch."""

from torchrec_qcomm.sharding.modules.embedding import QCommEmbeddingCollectionSharder, QCommShardedEmbeddingCollection
from torchrec_qcomm.sharding.modules.embedding_bag import QCommEmbeddingBagCollectionSharder, QCommShardedEmbeddingBagCollection
from torchrec_qcomm.sharding.modules.sharders import default_sharders, sharders_that_take
from torchrec_qcomm.sharding.traffic import TrafficMeter, measure_traffic
from torchrec_qcomm.state.saved import load_state_dict, state_dict

__all__ = [
    "QCommEmbeddingBagCollectionSharder",
    "QCommEmbeddingCollectionSharder",
    "QCommShardedEmbeddingBagCollection",
    "QCommShardedEmbeddingCollection",
    "TrafficMeter",
    "default_sharders",
    "load_state_dict",
    "measure_traffic",
    "sharders_that_take",
    "state_dict",
]
