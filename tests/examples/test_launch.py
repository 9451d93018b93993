"""What the examples are started with."""

from __future__ import annotations

from pathlib import Path

import torchrec

from tests.examples.conftest import Launch


def test_scripts_run_the_torchrec_of_the_tests(torchrun: Launch, tmp_path: Path) -> None:
    # A file for each rank: what they print may run together.
    (tmp_path / "which.py").write_text(
        "import os, sys\n"
        "from importlib.util import find_spec\n"
        "from pathlib import Path\n"
        "Path(sys.argv[1], os.environ['RANK']).write_text(find_spec('torchrec').origin)\n"
    )
    done = torchrun(tmp_path / "which.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / rank).read_text() for rank in "01"] == [torchrec.__file__] * 2
