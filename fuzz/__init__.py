"""Fuzzers: mutated files, which every loader must read or refuse in one sentence."""
