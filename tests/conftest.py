from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # the process that hands tests out needs no torch
    from tests.ranks import RankPool

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the machine's cores are the ranks' and the other tests'


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


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files that need ranks are one worker's: they keep two cores busy, and share processes. Others go where there is time.

    `--dist loadgroup` would need marks, which pytest-xdist 3.8 does not see with pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            return "ranks" if needs_ranks(config.rootpath / file) else file

    return Lanes(config, log)


@cache
def needs_ranks(file: Path) -> bool:
    """Whether a test file has tests for real ranks."""
    return "RankPool" in file.read_text()


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Real gloo ranks: ``ranks.run(world, function, *args)``."""
    from tests.ranks import RankPool

    pool = RankPool()
    yield pool
    pool.close()
