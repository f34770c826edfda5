"""The rule: how the passes of an image become a decision."""
