"""The base model that plugins attach to: Stable Diffusion 1.x, 2.x and XL in JAX."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
