"""Results for people: tables, figures, HTML."""
