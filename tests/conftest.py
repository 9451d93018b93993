from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # the process that hands tests out needs no torch
    from tests.ranks import RankPool

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the machine's cores are the ranks' and the other tests'
RANKS = {"ranks", "alike"}
"""Fixtures that give real ranks."""


def pytest_configure() -> None:
    """``make versions`` says in ``TORCHREC_VERSION`` with which TorchRec the tests are to run: that one, or none."""
    if wanted := os.environ.get("TORCHREC_VERSION"):
        import torchrec

        from torchrec_qcomm.sharding.versions import torchrec_version

        if not f"{torchrec_version()}.".startswith(f"{wanted}."):
            raise pytest.UsageError(
                f"TORCHREC_VERSION is {wanted}, but torchrec {torchrec_version()} is at {torchrec.__file__}"
            )


def pytest_report_header(config: pytest.Config) -> str | None:
    if config.getoption("numprocesses", None):
        return None  # the import would keep the tests waiting

    import torchrec

    from torchrec_qcomm.sharding.versions import torchrec_version

    return f"torchrec {torchrec_version()} from {torchrec.__file__}"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With pytest-xdist, tests that need ranks are one worker's: they keep two cores busy, and share processes."""
    for item in items:
        if RANKS & set(item.fixturenames):
            item.add_marker(pytest.mark.xdist_group("ranks"))


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Real gloo ranks: ``ranks.run(world, function, *args)``."""
    from tests.ranks import RankPool

    pool = RankPool()
    yield pool
    pool.close()
