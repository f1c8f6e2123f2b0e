"""Training of FILM: task and initialisation."""
