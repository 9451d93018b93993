"""Which TorchRec runs here, and whether the tests ran with it; no other file of the package looks at TorchRec's version."""

from __future__ import annotations

import logging
import re
from functools import cache

import torchrec

logger = logging.getLogger(__name__)

OLDEST, BELOW = (1, 7), (1, 10)
"""Major and minor version from which, and below which, TorchRec was tested: what ``pyproject.toml`` allows."""

TESTED = f">={OLDEST[0]}.{OLDEST[1]},<{BELOW[0]}.{BELOW[1]}"


def torchrec_version() -> str:
    """What the imported TorchRec says of itself; ``unknown`` where it was built without saying it."""
    return str(getattr(torchrec, "__version__", "unknown"))


def is_tested(version: str) -> bool:
    """Whether a version lies in the tested range; by major and minor, so nightly builds count as what they lead to.

    >>> [is_tested(version) for version in ("1.6.0", "1.7.0", "1.9.2+cpu", "1.10.0", "unknown")]
    [False, True, True, False, False]
    """
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and OLDEST <= (int(numbers[1]), int(numbers[2])) < BELOW


def warn_if_untested() -> None:
    """Log a warning, the first time only, if the tests never ran with this TorchRec. Called where a sharder is made."""
    if not is_tested(version := torchrec_version()):
        _warn(version)


@cache
def _warn(version: str) -> None:
    logger.warning(
        "torchrec %s: a version that torchrec_qcomm was not tested with; tested: %s. It may differ where this package builds "
        "on it. Install one of those, or compare results with TorchRec's own exchange.",
        version,
        TESTED,
    )
