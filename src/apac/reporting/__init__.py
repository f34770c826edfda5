"""Results as tables, figures and HTML pages."""
