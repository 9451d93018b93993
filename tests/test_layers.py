"""Imports only look down the layers."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import torchrec_qcomm

ROOT = Path(torchrec_qcomm.__file__).parent
EVERYWHERE = {"errors", "version"}
MAY_IMPORT = {
    "errors": set(),
    "version": set(),
    "codecs": set(),
    "policy": {"codecs"},
    "wire": {"codecs"},
    "collectives": {"wire", "codecs"},
    "state": {"collectives", "wire", "codecs"},
    "sharding": {"state", "collectives", "wire", "policy", "codecs"},
    "planner": {"wire", "policy", "codecs"},
    "tune": {"codecs"},
    "report": {"planner", "policy", "wire", "codecs"},
    "config": {"policy", "planner", "codecs"},
    "api": {"codecs", "policy", "wire", "sharding", "planner", "report", "config"},
    "cli": {"api", "config", "tune", "report", "planner", "policy", "wire", "codecs"},
    "__init__": {"api", "codecs", "policy", "wire", "state", "sharding", "planner", "report", "config"},
    "__main__": {"cli"},
}
BASIS = {"kinds", "job", "units"}
PLANNER_MAY_IMPORT = {
    "kinds": set(),
    "job": {"kinds"},
    "units": set(),
    "search": BASIS,
    "sources": {"search", *BASIS},
    "forecast": BASIS,
    "findings": {"forecast", "sources", *BASIS},
    "advice": {"findings", "forecast", "sources", *BASIS},
    "analysis": {"advice", "findings", "forecast", *BASIS},
    "__init__": {"search", "sources", "forecast", *BASIS},
}
"""The rooms of planner/. Names of the package itself are for other layers."""
LIBRARIES = {
    "torch.distributed": {"collectives", "sharding"},
    "torchrec": {"sharding", "planner", "report", "api"},
    "jinja2": {"report"},
    "fbgemm_gpu": {"codecs"},
    "pydantic": {"config"},
    "yaml": {"config"},
}
FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


def imported(source: str) -> set[str]:
    """The full names of all modules that a source imports, wherever in it that stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names)
    return names


def breaches(layer: str, source: str) -> list[str]:
    """The imports that a file of ``layer`` must not make."""
    allowed = MAY_IMPORT[layer] | EVERYWHERE | {layer}
    found = []
    for name in sorted(imported(source)):
        hidden = name.startswith(".")
        upward = name.startswith("torchrec_qcomm.") and name.split(".")[1] not in allowed
        foreign = any(f"{name}.".startswith(f"{lib}.") and layer not in layers for lib, layers in LIBRARIES.items())
        if hidden or upward or foreign:
            found.append(name)
    return found


def room_breaches(room: str, source: str) -> list[str]:
    """The imports that a file of this room of planner/ must not make."""
    allowed, planner = PLANNER_MAY_IMPORT[room] | {room}, "torchrec_qcomm.planner."
    return [name for name in sorted(imported(source)) if name.startswith(planner) and name.split(".")[2] not in allowed]


def unit_of(parts: tuple[str, ...]) -> str:
    """The folder that a file is in, or the file itself where it is in none."""
    return parts[0] if len(parts) > 1 else Path(parts[0]).stem


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_only_look_down(path: Path) -> None:
    assert not breaches(unit_of(path.parts), (ROOT / path).read_text())


@pytest.mark.parametrize("path", [path for path in FILES if path.parts[0] == "planner"], ids=str)
def test_rooms_of_the_planner_look_one_way(path: Path) -> None:
    assert not room_breaches(unit_of(path.parts[1:]), (ROOT / path).read_text())


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("codecs", "def f():\n    from torchrec_qcomm.wire import Side"),
        ("wire", "import torchrec_qcomm.policy.sites"),
        ("sharding", "from torchrec_qcomm.config import QCommConfig"),
        ("collectives", "from torchrec.distributed.types import Awaitable"),
        ("planner", "import torch.distributed as dist"),
        ("policy", "from ..wire import Side"),
        ("sharding", "import pydantic"),
    ],
)
def test_a_breach_is_seen(layer: str, source: str) -> None:
    assert breaches(layer, source)


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("kinds", "from torchrec_qcomm.planner.job import Job"),
        ("search", "def f():\n    from torchrec_qcomm.planner.sources.options import check_ranks"),
        ("forecast", "import torchrec_qcomm.planner.findings.loads"),
        ("findings", "if TYPE_CHECKING:\n    from torchrec_qcomm.planner.advice import Advice"),
        ("forecast", "from torchrec_qcomm.planner import Job"),
    ],
)
def test_a_breach_between_rooms_is_seen(room: str, source: str) -> None:
    assert room_breaches(room, source)


def module_name(path: Path) -> str:
    """The name by which a file of the package is imported; of an ``__init__.py`` that of its folder."""
    parts = path.with_suffix("").parts
    return ".".join(("torchrec_qcomm", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def import_graph(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """For each module, the modules of ``sources`` that it imports, in functions and for type checking too.

    A name taken from a package counts as an import of the package's ``__init__``, and that imports what it offers. But a module
    inside the package does not wait for that ``__init__``: there it counts as an import of the module that the name comes from.
    Else every module that an ``__init__`` offers would be in a circle with it.
    """
    imports = {module: imported(source) for module, source in sources.items()}

    def home(name: str, by: str) -> str | None:
        if name in sources:
            return name
        package, _, last = name.rpartition(".")
        if not package:
            return None
        if package not in sources or not by.startswith(f"{package}."):
            return home(package, by)
        offered = [origin for origin in imports[package] if origin.rpartition(".")[2] == last]
        return home(offered[0], package) if offered else package

    found = {module: {home(name, module) for name in names} for module, names in imports.items()}
    return {module: {target for target in targets if target not in (None, module)} for module, targets in found.items()}


def circle(graph: Mapping[str, set[str]]) -> str:
    """One circle of imports in words, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " is imported by ".join(error.args[1])
    return ""


def test_there_is_no_circle_of_imports() -> None:
    found = circle(import_graph({module_name(path): (ROOT / path).read_text() for path in FILES}))
    assert not found, found


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("from p.b import x", "from p.a import y"),
        ("import p.b", "def f():\n    from p import a"),
        ("from p import b", "if TYPE_CHECKING:\n    from p.a import y"),
        ("from p.b import x", "from p import y"),
        ("from p.b import x", "from p.c import z"),
    ],
)
def test_a_circle_is_seen(a: str, b: str) -> None:
    sources = {"p": "from p.a import y", "p.a": a, "p.b": b, "p.c": "from p import a"}
    assert "p.a is imported by" in circle(import_graph(sources))


def test_offering_its_modules_puts_a_package_in_no_circle() -> None:
    sources = {"p": "from p.a import y\nfrom p.b import x", "p.a": "from p import x", "p.b": "", "q": "from p import y"}
    graph = import_graph(sources)
    assert graph == {"p": {"p.a", "p.b"}, "p.a": {"p.b"}, "p.b": set(), "q": {"p"}}
    assert not circle(graph)


def asks_for_a_version(source: str) -> bool:
    """Whether a source looks at a version of TorchRec, or at what this one has."""
    modules = {".".join(name.split(".")[:2]) for name in imported(source)}
    libraries = {"importlib.metadata", "importlib.util", "torchrec.version", "pkg_resources"}
    by_name = re.search(r"\btorchrec\b.*__version__|\bhasattr\(\s*torchrec\b|\bsignature\(", source)
    return bool(modules & libraries or "packaging" in {name.split(".")[0] for name in modules} or by_name)


def test_one_file_looks_at_the_version_of_torchrec() -> None:
    asking = [path.as_posix() for path in FILES if asks_for_a_version((ROOT / path).read_text())]
    assert asking == ["sharding/versions.py"]


@pytest.mark.parametrize(
    "source",
    [
        "from importlib.metadata import version",
        "import importlib.metadata",
        "from importlib import metadata",
        "from packaging.version import Version",
        "from packaging import version",
        "import torchrec\nnew = torchrec.__version__ > '1.8'",
        "from torchrec import __version__ as new",
        "from torchrec.version import __version__",
        "def f(method):\n    return 'pg' in inspect.signature(method).parameters",
    ],
)
def test_a_look_at_the_version_is_seen(source: str) -> None:
    assert asks_for_a_version(source)


def test_files_can_be_read_at_one_sitting() -> None:
    long = {str(path): lines for path in FILES if (lines := len((ROOT / path).read_text().splitlines())) > 400}
    assert not long


MOST_ARGUMENTS = 7
COUNTED = ("sharding", "collectives", "planner")


def long_signatures(source: str) -> list[str]:
    """Functions with more than `MOST_ARGUMENTS`; ``*args`` and ``**kwargs`` are one each, and ``self`` and ``cls`` are none.

    The constructor of a dataclass, a plain value, has no function of its own.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            given = node.args
            names = [arg.arg for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs) if arg.arg not in ("self", "cls")]
            names += [arg.arg for arg in (given.vararg, given.kwarg) if arg is not None]
            if len(names) > MOST_ARGUMENTS:
                found.append(f"{getattr(node, 'name', 'lambda')}({', '.join(names)})")
    return found


@pytest.mark.parametrize("path", [path for path in FILES if path.parts[0] in COUNTED], ids=str)
def test_no_function_takes_more_arguments_than_can_be_kept_in_mind(path: Path) -> None:
    assert not long_signatures((ROOT / path).read_text())


@pytest.mark.parametrize(
    "source",
    [
        "def f(a, b, c, d, e, f, g, h): ...",
        "class A:\n    def f(self, a, b, c, d, e, f, *, g, **h): ...",
        "f = lambda a, /, b, c, d, e, f, *g, h: 0",
    ],
)
def test_a_long_signature_is_seen(source: str) -> None:
    assert long_signatures(source)


def test_a_plain_value_may_have_more_fields() -> None:
    fields = "".join(f"    {name}: int\n" for name in "abcdefgh")
    assert not long_signatures(f"@dataclass(frozen=True)\nclass Plain:\n{fields}")
    assert not long_signatures("def f(self, a, b, c, d, e, f, g): ...")
