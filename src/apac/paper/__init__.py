"""The paper's experiments: recipes, table, figures, report."""
