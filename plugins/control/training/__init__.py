"""The training task of controls and its image summaries."""
