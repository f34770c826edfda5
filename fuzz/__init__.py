"""Fuzzers: mutated files, which every loader must read or refuse in one sentence."""

import os

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # its import would ask a server for a newer version
