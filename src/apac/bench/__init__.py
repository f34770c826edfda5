"""How fast it is, beside what people use instead and beside what the machine can do."""
