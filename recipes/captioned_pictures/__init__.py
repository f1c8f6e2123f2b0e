"""Captioned pictures, 64x64: training and test data of the base diffusion-small (README.md)."""
