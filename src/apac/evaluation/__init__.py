"""Evaluate a classifier on labeled images: error against M, and the passes that the certified rule needs."""
