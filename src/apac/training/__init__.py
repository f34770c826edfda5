"""Training on deformed data: configuration, loop, optimizer, and the state of a checkpoint."""
