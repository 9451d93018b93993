"""What the examples are started with."""

from __future__ import annotations

from pathlib import Path

import torchrec

from tests.examples.conftest import Launch


def test_scripts_run_the_torchrec_of_the_tests(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "which.py").write_text("from importlib.util import find_spec\nprint(find_spec('torchrec').origin)\n")
    done = launch(tmp_path / "which.py")
    assert done.stdout.split() == [torchrec.__file__] * 2, done.stderr
