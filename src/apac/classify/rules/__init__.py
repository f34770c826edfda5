"""When to stop: each rule in its own file, behind the interface in `base.py`."""
