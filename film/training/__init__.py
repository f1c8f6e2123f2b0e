"""FILM's training task, losses, image summaries and initialization, for the trainer in `common.training`."""
