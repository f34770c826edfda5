"""The ranks of a torch.distributed process group: sums, agreement, and layers that see the whole batch."""
