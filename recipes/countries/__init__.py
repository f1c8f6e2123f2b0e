"""Flags and countries: a small real encyclopedia, with sixteen times as many invented countries (README.md)."""
