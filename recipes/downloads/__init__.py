"""Files taken out of published packages: training data, and the weights of losses and metrics."""
