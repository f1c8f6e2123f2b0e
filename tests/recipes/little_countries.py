"""The real countries with a handful of invented ones, and a network of hardly any size that reads them."""

from recipes.countries.data import CountriesConfig
from reveal.network.config import RevealConfig, VitConfig

COUNTRIES = CountriesConfig(size=16, invented=40, batch_size=8, own=2, near=2, shuffle=1)
VIT = VitConfig(width=16, depth=1, heads=2, mlp=16, patch=8, image_size=16)
SHAPE = (2048, 16, 2, 8, 16, 2, 1)
NETWORK = RevealConfig(VIT, *SHAPE, fusion_layers=1, key_dim=8, value_tokens=2, sources=4, bos=1949)
