"""TorchRec's version: which ones are tested, and that the tests run with the one that they were asked to run with."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torchrec

from tests.ranks import RankPool
from torchrec_qcomm.sharding import QCommEmbeddingBagCollectionSharder, versions

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _nothing_said_yet() -> None:
    versions._warn.cache_clear()


def warnings_of(sharders: int, caplog: pytest.LogCaptureFixture) -> list[str]:
    with caplog.at_level(logging.WARNING, logger="torchrec_qcomm"):
        for _ in range(sharders):
            QCommEmbeddingBagCollectionSharder()
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("version", ["1.6.2", "1.10.0", "1.10.0.dev20261201+cpu", "2.0.0", "2026.11.29", "from a fork"])
def test_an_untested_version_is_warned_of_once(
    version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torchrec, "__version__", version, raising=False)
    (said,) = warnings_of(2, caplog)
    assert f"torchrec {version}:" in said
    assert "tested: >=1.7,<1.10" in said


def test_a_version_that_cannot_be_told_is_warned_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delattr(torchrec, "__version__")
    (said,) = warnings_of(1, caplog)
    assert "torchrec unknown:" in said


@pytest.mark.parametrize("version", ["1.7.0", "1.8.0+cpu", "1.9.2", "1.9.10", "1.9.0a0"])
def test_a_tested_version_is_not_warned_of(
    version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torchrec, "__version__", version, raising=False)
    assert warnings_of(1, caplog) == []


def test_the_installed_version_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of(1, caplog) == []


def test_what_may_be_installed_is_what_was_tested() -> None:
    assert f'"torchrec{versions.TESTED}"' in (ROOT / "pyproject.toml").read_text()


def test_the_oldest_and_the_newest_are_what_make_versions_tests() -> None:
    (others,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("OTHERS := ")]
    oldest, newest = others.split()[2:]
    assert oldest == f"{versions.OLDEST[0]}.{versions.OLDEST[1]}.0"
    assert newest == f"{versions.BELOW[0]}.{versions.BELOW[1] - 1}"


def torchrec_of(rank: int, world: int) -> tuple[str, str]:
    return versions.torchrec_version(), torchrec.__file__


def test_ranks_run_the_torchrec_of_the_tests(ranks: RankPool) -> None:
    assert ranks.run(2, torchrec_of) == [torchrec_of(0, 1)] * 2
