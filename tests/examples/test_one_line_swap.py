"""The promise of the README: one import and one changed line."""

from __future__ import annotations

import re
from pathlib import Path

from tests.examples.conftest import ROOT, Launch

SCRIPT = ROOT / "examples" / "one_line_swap.py"


def losses(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


def test_a_script_written_for_torchrec_trains_with_one_line_changed(launch: Launch, tmp_path: Path) -> None:
    native = SCRIPT.read_text()
    line = "sharders = get_default_sharders()"
    assert native.count(line) == 1
    swapped = native.replace(line, "import torchrec_qcomm as qc; sharders = qc.get_sharders('configs/uniform_fp8.yaml')")
    (tmp_path / "swapped.py").write_text(swapped)

    results = [launch(script) for script in (SCRIPT, tmp_path / "swapped.py")]
    for done in results:
        assert done.returncode == 0, done.stderr
    (start, end), (swapped_start, swapped_end) = (losses(done.stdout) for done in results)
    assert end < start - 0.05
    assert swapped_end < swapped_start - 0.05
    assert 0 < abs(swapped_start - start) < 0.01  # in the path, and close
