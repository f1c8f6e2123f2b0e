"""Training tasks of the base model: denoising and the autoencoder."""
