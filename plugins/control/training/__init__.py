"""The training task of control networks."""
