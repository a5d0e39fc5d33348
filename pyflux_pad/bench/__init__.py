"""Measurements: the same work on every engine and peer, what the package's own calls cost, and what a GPU does."""
