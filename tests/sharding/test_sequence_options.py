"""EmbeddingCollection with the options of TorchRec that change what is exchanged or returned."""

from __future__ import annotations

import pytest

from tests.ranks import RankPool
from tests.sharding.scenarios.sequence_options import beside_native

EVEN, WITH_EMPTY = (7, 7, 7), (7, 0, 5)


@pytest.mark.parametrize(
    ("kind", "options", "sizes"),
    [
        ("mixed", {"indices"}, WITH_EMPTY),
        ("mixed", {"indices", "shared"}, EVEN),
        ("mixed", {"unique", "indices"}, EVEN),
        ("columns anywhere", set(), WITH_EMPTY),
    ],
    ids=lambda value: " and ".join(sorted(value)) if isinstance(value, set) else None,
)
def test_none_is_bit_equal_to_torchrec(ranks: RankPool, kind: str, options: set[str], sizes: tuple[int, ...]) -> None:
    for rank, answer in enumerate(ranks.run(3, beside_native, kind, options, sizes)):
        assert all(answer.values()), (rank, answer)
