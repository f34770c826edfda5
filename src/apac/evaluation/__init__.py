"""Evaluation of a classifier on labeled images, with fixed numbers of passes M or with the certified rule."""
