"""Both worlds with pictures of 16 pixels (few invented countries, few newcomers), and networks of hardly any size."""

from recipes.countries.data import CountriesConfig
from recipes.countries.facts import Atlas
from recipes.small_world.data import WorldConfig
from reveal.network.config import RevealConfig, VitConfig

COUNTRIES = CountriesConfig(size=16, invented=40, batch_size=8, own=2, near=2, shuffle=1)
WORLD = WorldConfig(size=16, batch_size=4, near=2, held_out=20, newcomers=2)
VIT = VitConfig(width=16, depth=1, heads=2, mlp=16, patch=8, image_size=16)
COUNTRIES_NETWORK, WORLD_NETWORK = (
    RevealConfig(VIT, words, 16, 2, 8, 16, 2, 1, fusion_layers=1, key_dim=8, value_tokens=2, sources=4, bos=bos)
    for words, bos in ((2048, 1949), (len(WORLD.vocabulary), 2))
)


def number_of(atlas: Atlas, name: str) -> int:
    return [country.name for country in atlas.countries].index(name)
