"""Measurements: what the package costs on the host (`host`), and what is right and how fast on a GPU (`gpu`)."""
