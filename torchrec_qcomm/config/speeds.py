"""Reads speeds of codecs from a YAML file."""

from __future__ import annotations

from collections.abc import Mapping

from torchrec_qcomm.config.yaml_file import read_yaml
from torchrec_qcomm.errors import ConfigError, describe
from torchrec_qcomm.planner.findings.speeds import Speeds


def read_speeds(path: str) -> Speeds:
    """The speeds in a file such as ``int8: [40, 60]``: encode and decode, GB/s of FP32 values.

    Raises:
        ConfigError: there is no such file, or it holds something else.
    """
    data = read_yaml(path)
    if not isinstance(data, Mapping) or not data:
        allowed = "a mapping, as in int8: [40, 60]: encode and decode, GB/s of FP32 values"
        raise ConfigError(describe(path, "no speeds of codecs", got=data, allowed=allowed))
    return Speeds({str(name): _pair(path, name, pair) for name, pair in data.items()}, f"given in {path}")


def _pair(path: str, name: object, pair: object) -> tuple[float, float]:
    numbers = isinstance(pair, list) and len(pair) == 2 and all(type(each) in (int, float) and each > 0 for each in pair)
    if not isinstance(pair, list) or not numbers:
        allowed = "[encode, decode], GB/s of FP32 values, above 0"
        raise ConfigError(describe(f"{path}: {name}", "not two speeds", got=pair, allowed=allowed))
    return float(pair[0]), float(pair[1])
