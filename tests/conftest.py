from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.ranks import RankPool


def pytest_configure() -> None:
    """``make versions`` says in ``TORCHREC_VERSION`` with which TorchRec the tests are to run: that one, or none."""
    if wanted := os.environ.get("TORCHREC_VERSION"):
        import torchrec

        from torchrec_qcomm.sharding.versions import torchrec_version

        if not f"{torchrec_version()}.".startswith(f"{wanted}."):
            raise pytest.UsageError(
                f"TORCHREC_VERSION is {wanted}, but torchrec {torchrec_version()} is at {torchrec.__file__}"
            )


def pytest_report_header() -> str:
    import torchrec

    from torchrec_qcomm.sharding.versions import torchrec_version

    return f"torchrec {torchrec_version()} from {torchrec.__file__}"


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Real gloo ranks: ``ranks.run(world, function, *args)``."""
    pool = RankPool()
    yield pool
    pool.close()
