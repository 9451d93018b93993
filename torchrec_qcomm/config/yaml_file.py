"""Reads a YAML file into plain values, and finds what YAML lets pass: keys given twice, and keys with no value."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from torchrec_qcomm.errors import ConfigError, describe


def read_yaml(path: str | Path) -> Any:
    """The content of a YAML file.

    Raises:
        ConfigError: the file cannot be read, is not YAML (with the line), or gives a key twice in one mapping.
    """
    if not str(path):
        raise ConfigError(describe("config", "an empty path", got=str(path), allowed="the path of a YAML file"))
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        here = file.parent.glob("*.y*ml") if file.parent.is_dir() else ()
        near = sorted(str(other) for other in here if other.is_file())
        allowed = near or "a YAML file"
        raise ConfigError(describe(str(path), "no such file", got=str(path), allowed=allowed)) from error
    except IsADirectoryError as error:
        raise ConfigError(describe(str(path), "a directory, not a file", got=str(path), allowed="a YAML file")) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(describe(str(path), f"cannot be read ({error})", got=str(path), allowed="UTF-8 text")) from error
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"{path}: line {mark.line + 1}, column {mark.column + 1}" if mark else str(path)
        said = [text for text in (error.context, error.problem) if text]
        raise ConfigError(f"{at}: {', '.join(said)}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply to be read") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error


def empty_keys(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all keys and items that have no value (``forward:`` followed by nothing, ``null`` or ``~``)."""
    if value is None:
        yield path
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from empty_keys(item, (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from empty_keys(item, (*path, index))


class _UniqueKeyLoader(yaml.SafeLoader):
    """A ``SafeLoader`` that refuses a key given twice: plain YAML keeps the last and says nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # `<<: *base`: a key of the mapping itself may replace one of these
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key that is a list or a mapping", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)
