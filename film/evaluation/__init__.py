"""Scores of FILM weights and of methods without training on triplet test sets."""
