"""Metrics and score tables that all systems share."""
