"""Control plugins: small networks that steer a frozen text-to-image diffusion model with a picture."""
