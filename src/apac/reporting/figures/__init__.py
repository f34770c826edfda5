"""The paper's figures, and those of the certified rule. Each function draws one and returns it as PNG."""
