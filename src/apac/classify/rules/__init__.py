"""When to stop: one file per rule, behind the interface in `base.py`."""
