"""Offline work on samples of values: measuring codecs, and learning their tables."""
