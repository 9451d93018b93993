"""How good the scores on held-out samples are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dlrm_lib.errors import ExampleError

MISSING = "the package scikit-learn is not installed. Run: pip install '.[examples]'"


@dataclass(frozen=True, slots=True)
class Quality:
    """Quality on held-out samples.

    Attributes:
        auc: area under the ROC curve; None if all labels are equal.
        normalized_entropy: log loss over the entropy of the base rate (He et al. 2014, section 3); None if all labels are
            equal. Predicting the base rate alone scores 1.0.
        base_rate: share of positive labels among them.
        samples: their number.
    """

    auc: float | None
    normalized_entropy: float | None
    base_rate: float
    samples: int


def quality(logits: np.ndarray, labels: np.ndarray) -> Quality:
    """Measure scores against labels.

    >>> print(quality(np.array([-1.0, 2.0]), np.array([0, 1])).auc)
    1.0
    """
    try:
        from sklearn.metrics import roc_auc_score
    except ImportError:
        raise ExampleError(MISSING) from None
    logits, labels = logits.astype(np.float64), labels.astype(np.float64)
    rate = float(labels.mean()) if len(labels) else math.nan
    if not 0 < rate < 1:
        return Quality(None, None, rate, len(labels))
    # log(1 + exp(x)) - y * x: the log loss of a logit, without overflow
    log_loss = float(np.mean(np.logaddexp(0, logits) - labels * logits))
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    return Quality(float(roc_auc_score(labels, logits)), log_loss / entropy, rate, len(labels))
