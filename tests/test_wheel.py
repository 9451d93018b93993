"""The package works once it is installed, away from its sources."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
PACKED = {".py", ".typed", ".j2"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the built wheel's contents. Built from a copy: setuptools leaves, and reuses, ``build/``."""
    out, target, copy = (tmp_path_factory.mktemp(name) for name in ("wheel", "site", "copy"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, copy)
    shutil.copytree(PROJECT / "torchrec_qcomm", copy / "torchrec_qcomm", ignore=shutil.ignore_patterns("__pycache__"))
    run = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(copy)]
    subprocess.run(run, check=True, capture_output=True, text=True, timeout=120)
    (wheel,) = out.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True, text=True, timeout=120)
    return target


def test_every_module_is_in_the_wheel(site: Path) -> None:
    packed = {path.relative_to(site) for path in site.rglob("torchrec_qcomm/**/*") if path.suffix in PACKED}
    source = {p.relative_to(PROJECT) for p in (PROJECT / "torchrec_qcomm").rglob("*") if p.suffix in PACKED}
    assert packed == source


def test_it_imports_and_answers_help_from_an_empty_folder(site: Path, tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(site), "PATH": ""}
    where = [sys.executable, "-c", "import torchrec_qcomm; print(torchrec_qcomm.__file__)"]
    done = subprocess.run(where, cwd=tmp_path, env=env, check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == str(site / "torchrec_qcomm" / "__init__.py")
    helped = subprocess.run(
        [sys.executable, str(site / "bin" / "torchrec-qcomm"), "--help"],
        cwd=tmp_path, env=env, check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "check" in helped.stdout
    assert not list(tmp_path.iterdir())
