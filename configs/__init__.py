"""Hydra's configuration files: one folder per noun, one file per choice; experiments put them together."""
