"""Whether training survives the codecs, and whether the check would notice if it did not: ``make convergence``."""
