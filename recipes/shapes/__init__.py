"""Proof that controls learn: coloured shapes that only a condition can place (README.md)."""
