"""Training on deformed data: configuration, loop, optimizer and checkpoints."""
