"""The paper's figures and those of the certified rule. Each function draws one figure and returns it as PNG."""
