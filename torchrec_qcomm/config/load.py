"""A file in, a valid config out."""

from __future__ import annotations

import os

from torchrec_qcomm.config.models import QCommConfig
from torchrec_qcomm.config.yaml_file import read_yaml


def load_config(path: str | os.PathLike[str]) -> QCommConfig:
    """Read and validate a config file.

    Args:
        path: a YAML file; docs/reference lists the keys.

    Raises:
        ConfigError: lists every problem of the file, each with its key path, the value, and what is allowed.
    """
    return QCommConfig.from_dict(read_yaml(os.fspath(path)), source=os.fspath(path))
