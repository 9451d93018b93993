"""The promise of the README: one import and one changed line."""

from __future__ import annotations

import re
from pathlib import Path

from tests.examples.conftest import ROOT, Launch

SCRIPT = ROOT / "examples" / "one_line_swap.py"
LINE = "sharders = get_default_sharders()"


def losses(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


def with_sharders(text: str, expression: str) -> str:
    """The script with its one line changed."""
    assert text.count(LINE) == 1
    return text.replace(LINE, f"import torchrec_qcomm as qc; sharders = {expression}")


def test_a_script_written_for_torchrec_trains_with_one_line_changed(launch: Launch, tmp_path: Path) -> None:
    swapped = with_sharders(SCRIPT.read_text(), "qc.get_sharders('configs/uniform_fp8.yaml')")
    (tmp_path / "swapped.py").write_text(swapped)

    results = [launch(script) for script in (SCRIPT, tmp_path / "swapped.py")]
    for done in results:
        assert done.returncode == 0, done.stderr
    (start, end), (swapped_start, swapped_end) = (losses(done.stdout) for done in results)
    assert end < start - 0.05
    assert swapped_end < swapped_start - 0.05
    assert 0 < abs(swapped_start - start) < 0.01  # in the path, and close


def test_none_on_the_wire_trains_as_torchrec_does_to_the_last_bit(launch: Launch, tmp_path: Path) -> None:
    native = SCRIPT.read_text()
    assert native.count("{losses[0]:.6f}") == 1
    native = native.replace("{losses[0]:.6f}", "{losses}")  # of every step, all digits
    (tmp_path / "native.py").write_text(native)
    (tmp_path / "ours.py").write_text(with_sharders(native, "qc.get_sharders()"))
    results = [launch(tmp_path / name) for name in ("native.py", "ours.py")]
    for done in results:
        assert done.returncode == 0, done.stderr
        assert len(losses(done.stdout)) == 61  # 60 steps, and the mean at the end
    assert results[0].stdout == results[1].stdout
