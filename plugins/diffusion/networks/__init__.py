"""UNet, autoencoder and text encoder of Stable Diffusion 1.x and 2.x."""
