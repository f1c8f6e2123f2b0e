"""The small world with pictures of 16 pixels, and a network for it that nobody would train."""

from recipes.small_world.data import WorldConfig
from reveal.network.config import RevealConfig, VitConfig

WORLD = WorldConfig(size=16, batch_size=4, near=2, held_out=20, newcomers=2)
VIT = VitConfig(width=16, depth=1, heads=2, mlp=16, patch=8, image_size=16)
SHAPE = (len(WORLD.vocabulary), 16, 2, 8, 16, 2, 1)
NETWORK = RevealConfig(VIT, *SHAPE, fusion_layers=1, key_dim=8, value_tokens=2, sources=4, bos=2)
