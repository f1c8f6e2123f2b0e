"""UNet and autoencoders of Stable Diffusion 1.x, 2.x and XL."""
