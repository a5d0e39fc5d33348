"""Measurements: what the package costs on the host (`overhead`), what is right and how fast on a GPU (`gpu`)."""
