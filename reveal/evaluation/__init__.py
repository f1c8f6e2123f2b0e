"""Scores of REVEAL networks on published benchmarks."""
