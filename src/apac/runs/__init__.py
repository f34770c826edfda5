"""Runs: training, loading, and storage in folders."""
