"""Runs: train and load them, their folders, and how files are written."""
