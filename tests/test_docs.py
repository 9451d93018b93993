"""What the documentation shows runs as shown, and what it names exists."""

from __future__ import annotations

import doctest
import importlib
import io
import os
import pkgutil
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
from pydantic import BaseModel

import torchrec_qcomm as qc
from torchrec_qcomm import codecs, errors
from torchrec_qcomm.cli.main import main
from torchrec_qcomm.config import PrecisionConfig, RuleConfig, ShardingConfig, TableConfig, TopologyConfig
from torchrec_qcomm.config.blocks import WhereConfig

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMED = [*PAGES, ROOT / "Makefile"]
MODULES = [
    module.name for module in pkgutil.walk_packages(qc.__path__, "torchrec_qcomm.") if not module.name.endswith("__main__")
]
FLAGS = doctest.NORMALIZE_WHITESPACE


class Block(NamedTuple):
    """A fenced block; ``kind`` is all that stands behind the opening fence."""

    kind: str
    line: int
    text: str


def blocks(page: Path) -> list[Block]:
    found, opened = [], None
    lines = page.read_text().splitlines()
    for number, line in enumerate(lines, start=1):
        if line.startswith("```") and opened is None:
            opened = number
        elif line.startswith("```"):
            found.append(Block(lines[opened - 1][3:], opened, "\n".join(lines[opened : number - 1]) + "\n"))
            opened = None
    assert opened is None, f"{page}:{opened} is not closed"
    return found


def of_kind(kind: str, *pages: Path) -> str:
    """All blocks of a kind, one behind the other."""
    return "".join(block.text for page in pages for block in blocks(page) if block.kind == kind)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """YAML loads, Python prints what stands there; a block that begins with ``# name`` is a file for those behind it."""
    monkeypatch.chdir(tmp_path)
    parser, space = doctest.DocTestParser(), {}
    for block in blocks(page):
        where = f"{name(page)}:{block.line}"
        if block.kind == "yaml":
            named = re.match(r"# (\S+\.yaml)\n", block.text)
            file = Path(named.group(1) if named else "block.yaml")
            file.write_text(block.text)
            qc.load_config(file)
        elif block.kind == "python":
            test = parser.get_doctest(block.text, space, where, name(page), block.line)
            assert test.examples, f"{where} shows no prompt"
            runner, out = doctest.DocTestRunner(optionflags=FLAGS), io.StringIO()
            runner.run(test, out=out.write, clear_globs=False)
            assert not runner.failures, out.getvalue()
            space = test.globs


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_is_of_a_known_kind(page: Path) -> None:
    """So that none is left out of these tests by a slip. README's demo output has no kind."""
    known = {"", "sh", "yaml", "python", "python ranks", "text", "text ranks", "diff", "console"}
    assert {block.kind for block in blocks(page)} <= known


def test_the_scripts_for_ranks_run(tmp_path: Path) -> None:
    """The quickstart's script, and at its end the lines of the traffic guide, which continue it."""
    quickstart, traffic = ROOT / "docs" / "quickstart.md", ROOT / "docs" / "guides" / "traffic.md"
    users = [page for page in PAGES if of_kind("python ranks", page)]
    assert users == [traffic, quickstart]
    policy = next(block.text for block in blocks(quickstart) if block.kind == "yaml")
    (tmp_path / "policy.yaml").write_text(policy)
    body, end, rest = of_kind("python ranks", quickstart).rpartition("\ndel model")
    (tmp_path / "train.py").write_text(body + of_kind("python ranks", traffic) + end + rest)
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "train.py"],
        cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail("".join(process.communicate()))
    assert process.returncode == 0, err
    assert out == of_kind("text ranks", quickstart)


def test_command_lines_print_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """``$ torchrec-qcomm ...``, then lines of its output in order; ``...`` stands for any others."""
    monkeypatch.chdir(ROOT)
    shown = [block for page in PAGES for block in blocks(page) if block.kind == "console"]
    assert shown
    for block in shown:
        command, *lines = block.text.splitlines()
        assert command.startswith("$ torchrec-qcomm ")
        out = io.StringIO()
        with redirect_stdout(out):
            assert main(command.split()[2:]) == 0
        assert doctest.OutputChecker().check_output("\n".join(lines) + "\n", out.getvalue() + "\n", doctest.ELLIPSIS), block


def test_diffs_take_away_lines_that_exist() -> None:
    scripts = (ROOT / "examples" / "one_line_swap.py").read_text() + of_kind("python ranks", ROOT / "docs" / "quickstart.md")
    present = {line.split("  #")[0].strip() for line in scripts.splitlines()}
    gone = [line[1:] for page in PAGES for line in of_kind("diff", page).splitlines() if line.startswith("-")]
    assert gone
    assert set(gone) <= present


def test_the_swap_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(of_kind("yaml", ROOT / "README.md"))
    added = [line[1:] for line in of_kind("diff", ROOT / "README.md").splitlines() if line.startswith("+")]
    space: dict[str, object] = {}
    exec("\n".join(added), space)
    ours = [s for s in space["sharders"] if isinstance(s, qc.QCommEmbeddingBagCollectionSharder)]
    assert len(ours) == 1
    assert str(ours[0].policy.forward) == "fp8_e4m3"


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name(page)}: {target}"
        assert not anchor or anchor in anchors(file), f"{name(page)}: {target}"


@pytest.mark.parametrize("page", NAMED, ids=name)
def test_files_and_targets_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    for path in re.findall(r"(?<![\w./-])(?:configs|examples|docs|tests|torchrec_qcomm)/[\w./-]*\w", text):
        assert (ROOT / path).exists() or any((ROOT / path).parent.glob(f"{Path(path).name}.*")), f"{name(page)}: {path}"
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make ([a-z]+)", text, re.MULTILINE)) <= targets


def test_every_page_can_be_reached_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/[^)#\s]+)", (ROOT / "README.md").read_text()))
    assert linked >= {name(page) for page in PAGES if "docs" in page.parts}


def test_the_reference_names_all_that_is_public() -> None:
    text = REFERENCE.read_text()
    for public in qc.__all__:
        assert re.search(rf"`{public}\b", text), public
    for public in vars(errors).values():
        if isinstance(public, type) and issubclass(public, qc.QCommError):
            assert f"`{public.__name__}`" in text


def test_the_reference_names_all_keys() -> None:
    text = REFERENCE.read_text()
    models: list[type[BaseModel]] = [
        qc.QCommConfig, PrecisionConfig, RuleConfig, WhereConfig, ShardingConfig, TopologyConfig, TableConfig,
    ]  # fmt: skip
    for key in {key for model in models for key in model.model_fields}:
        assert re.search(rf"`(\w+\.)?{key}(\.\w+)?`", text), key


def test_the_reference_has_a_row_for_every_codec_with_its_size() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|[^|]+\| (\d+) \|", REFERENCE.read_text(), re.MULTILINE))
    assert rows == {codec: str(codecs.get(codec).row_bytes(128)) for codec in codecs.names()}


def test_what_the_readme_says_is_refused_is_refused() -> None:
    for precision, said in (({"default": {"forward": "int4"}, "error_feedback": True}, "unknown key"),):
        with pytest.raises(qc.ConfigError, match=said):
            qc.QCommConfig.from_dict({"precision": precision})
        assert f": {said} |" in (ROOT / "README.md").read_text()


def doctests() -> Iterator[str]:
    for module in MODULES:
        if any(test.examples for test in doctest.DocTestFinder().find(importlib.import_module(module))):
            yield module


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples_run(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module), optionflags=FLAGS)
    assert not result.failed


def test_there_are_docstring_examples() -> None:
    assert len(list(doctests())) >= 5
