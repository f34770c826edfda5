"""Deformations: distributions over Θ, and u(x; Θ)."""
