"""Implementations of the formats: every backend gives the same bytes."""
