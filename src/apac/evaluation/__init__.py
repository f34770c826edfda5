"""Judge a classifier on labeled images: error against M, and what the certified rule takes."""
