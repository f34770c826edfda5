"""On-line deformation training."""
