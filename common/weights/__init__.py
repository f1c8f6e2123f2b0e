"""Weights that describe themselves, and strict porting of parameters."""
