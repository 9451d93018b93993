from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ranks import RankPool


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Real gloo ranks: ``ranks.run(world, function, *args)``."""
    pool = RankPool()
    yield pool
    pool.close()
