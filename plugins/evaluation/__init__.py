"""Scores of diffusion bases and of controls."""
