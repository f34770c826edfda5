"""Work shared by several processes or machines."""
