"""Downloads of training data and of weights that losses and metrics need."""
