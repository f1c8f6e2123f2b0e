"""Which photographs are taken from which packages, who made them, and on what terms: a list made by looking at them.

Desktops and teaching programs carry photographs that may be used freely. Each row below is one of them: its name in the
package, its licence (SPDX, or public-domain), its author, as the package's own notes have them: debian/copyright,
metadata.json beside Plasma's, the README beside each of GCompris'.

Every candidate was looked at whole and, where it is sharpest, pixel by pixel. Left out:

* what is no photograph, or painted over: renders, vector art, composites;
* black or white borders (a line of pixels is one), overlaid text, people on a stage, film characters;
* fewer than 640 px on the short side;
* little to see: out of focus, underexposed, or smooth in more than 85 % of the area (the gradient's mean over 64x64 px
  is below one level of 255 per px);
* pictures smeared by compression or noise reduction;
* MATE's photographs, which are under the GPL and bring little that is not here.

What models are evaluated on (the clips cup, box, cityCC0 and bikes, the pair motorcycle) is in none of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from recipes.downloads.archives import Package

TRAIN, HELD_OUT = "train", "held_out"
HELD = {  # never trained on: water, boats at dusk, meadow flowers, an animal in grass, a castle in a forest
    "lomiri_life_by_Aitzol_Berasategi.jpg",
    "plasma_EveningGlow.jpg",
    "lxqt_flowers.png",
    "gcompris_cheetah.webp",
    "gcompris_neuschwansteinCastle.webp",
}


@dataclass(frozen=True)
class Photograph:
    """One row: `member` is the path in the package, which goes on inside a Qt resource file (.rcc); `name` is ours."""

    package: Package
    member: str
    name: str
    licence: str
    author: str

    @property
    def split(self) -> str:
        return HELD_OUT if self.name in HELD else TRAIN


def read_rows(package: Package, prefix: str, member: str, table: str) -> list[Photograph]:
    """`table`: lines of name, licence, author; `member`: the path, with {} where the name comes.

    Ours is the prefix, the name's last part and the path's ending: unique where the prefix is."""
    found = []
    for line in table.strip().splitlines():
        name, licence, author = line.split(maxsplit=2)
        path = member.format(name)
        suffix = PurePosixPath(path).suffix
        ours = f"{prefix}_{PurePosixPath(name).name.removesuffix(suffix)}{suffix}"
        found.append(Photograph(package, path, ours, licence, author))
    return found


LOMIRI = Package("deb", "lomiri-wallpapers-16.04", "", "CC0-1.0, CC-BY-4.0, CC-BY-SA-4.0")
LOMIRI_20 = Package("deb", "lomiri-wallpapers-20.04", "", "CC-BY-SA-3.0")
PLASMA = Package("deb", "plasma-workspace-wallpapers", "", "LGPL-3.0 (each photograph's metadata.json)")
LXQT = Package("deb", "lxqt-themes", "", "LGPL-2.1+")
GCOMPRIS = Package("deb", "gcompris-qt-data", "", "public domain, CC0-1.0, CC-BY-2.0, CC-BY-3.0, CC-BY-SA-4.0")
BACKGROUNDS = "usr/share/backgrounds/{}.jpg"
GAME = "usr/share/gcompris-qt/rcc/{0}.rcc/gcompris/src/activities/{0}/resource/{1}{{}}.webp"

_LOMIRI = """
Bridge_by_Sander_Klootwijk         CC-BY-SA-4.0 Sander Klootwijk
Dragonfly_by_Bolly                 CC-BY-SA-4.0 Bolly
Picture_0B_by_freespace            CC-BY-4.0    Trevor "Freespace"
Picture_1A_by_freespace            CC-BY-4.0    Trevor "Freespace"
Wine_by_Jakkub_Mede                CC-BY-4.0    Jakub Mede
aitzgorri_by_Aitzol_Berasategi     CC-BY-4.0    Aitzol Berasategi
friends_by_Aitzol_Berasategi       CC-BY-4.0    Aitzol Berasategi
life_by_Aitzol_Berasategi          CC-BY-4.0    Aitzol Berasategi
picosdeeuropa_by_Aitzol_Berasategi CC-BY-4.0    Aitzol Berasategi
seeding_by_Clements_Engelhardt     CC0-1.0      Clemens Engelhardt
sunset_by_Aitzol_Berasategi        CC-BY-4.0    Aitzol Berasategi
"""
_LOMIRI_20 = "Kleiber_by_Lukas_Baubkus CC-BY-SA-3.0 Lukas Baubkus"
_PLASMA = """
BytheWater   LGPL-3.0 Maciej Wiklo
ColdRipple   LGPL-3.0 Risto Saukonpää
ColorfulCups LGPL-3.0 Dmitri Popov
EveningGlow  LGPL-3.0 Ian Hex
FallenLeaf   LGPL-3.0 Martin Klapetek
Grey         LGPL-3.0 Sigi Sagi
Kite         LGPL-3.0 Risto Saukonpää
OneStandsOut LGPL-3.0 Risto Saukonpää
Path         LGPL-3.0 Risto Saukonpää
summer_1am   LGPL-3.0 Risto Saukonpää
"""
_LXQT = """
Valendas.png            LGPL-2.1+ Razor and LXQt teams
beam.png                LGPL-2.1+ Razor and LXQt teams
cloud.png               LGPL-2.1+ Razor and LXQt teams
flowers.png             LGPL-2.1+ Razor and LXQt teams
fog.jpg                 LGPL-2.1+ Razor and LXQt teams
this-is-not-windows.jpg LGPL-2.1+ Razor and LXQt teams
"""
_ANIMALS = """
alpaca            CC-BY-SA-4.0  Dietmar Rabich / Wikimedia Commons
bee               CC-BY-2.0     aussiegall
butterfly         CC-BY-SA-4.0  Jee & Rani Nature Photography
calf              CC-BY-SA-4.0  Basile Morin
camels            CC-BY-SA-4.0  Alexandr frolov
caterpillar       CC-BY-SA-4.0  Ivar Leidus
chamaeleon        CC-BY-3.0     Benny Trapp
cheetah           CC-BY-SA-4.0  Charles J. Sharp
crab              CC0-1.0       Nosferattus
dolphin           CC-BY-SA-4.0  טל שמע
flying_fox        CC-BY-SA-4.0  Andrew Mercer
gibbon            CC-BY-3.0     JJ Harrison
giraffe           public-domain Sergio Cambelo
goat              CC-BY-SA-4.0  JoachimKohlerBremen
gorilla           CC-BY-SA-4.0  Charles J. Sharp
gosling           CC-BY-SA-4.0  Stephan Sprinz
heron             CC-BY-SA-4.0  Stephan Sprinz
horse             CC-BY-SA-4.0  Eatcha
kingfisher        CC0-1.0       Frank-2.0
kitten            CC-BY-2.0     GalgenTX
long_nosed_monkey CC-BY-SA-4.0  Charles J. Sharp
macaque           CC-BY-SA-4.0  PJeganathan
meerkats          CC-BY-SA-4.0  Charles J. Sharp
northern_harrier  CC-BY-SA-4.0  Frank Schulenburg
nubian_ibex       CC-BY-SA-4.0  Rhododendrites
penguin           CC-BY-SA-4.0  Gordon Leggett / Wikimedia Commons
pika              public-domain NPS Climate Change Response
red_panda         CC0-1.0       Mathias Appel
rhinoceros        CC-BY-SA-4.0  Charles J. Sharp
spoonbills        CC-BY-SA-4.0  Ryzhkov Sergey
squirrel          CC-BY-SA-4.0  Роман Наумов
swans             CC-BY-SA-4.0  Charles J. Sharp
toucan            CC-BY-SA-4.0  LG Nyqvist
"""
_SEA = """
sea4 public-domain Pseudopanax
sea6 public-domain U.S. Fish and Wildlife Service
"""
_FARM = """
cat     public-domain Loliloli
chicken public-domain Tranquilles
cow     public-domain Dohduhdah
dog     public-domain Hans Kemperman
horse   CC0-1.0       Seth Zeigler
pig     public-domain Teinesavaii
sheep   CC0-1.0       Rob Mitchell
"""
_WORLD = """
bison      CC0-1.0       Kurt Kaiser
chameleon  public-domain Nilesh1104
dragon     public-domain TimVickers
giraffe    CC0-1.0       Mike and Lara Wolfe
hedgehog   public-domain George Chernilevsky
kangaroo   public-domain Vicki Nunn
koala      public-domain BurningWell
lemur      CC0-1.0       Mathias Appel
moose      public-domain Ryan Hagerty
polar_bear public-domain anonymous
"""
_MONUMENTS = """
egypt/bentPyramid            public-domain Neithsabes
egypt/greatPyramidOfGiza     CC0-1.0       Gary Todd
egypt/meidumPyramid          public-domain Neithsabes
france/arlesAmphitheater     public-domain (WT-fr) OT Arles
france/chateaudeChambord     public-domain BjörnT
france/chateaudeChenonceau   public-domain Alf van Beem
france/citedeCarcassonne     public-domain Petitemontagnedujura
france/eiffelTower           public-domain Tognopop
france/palaisdesPapes        CC0-1.0       Tognopop
france/pontduGard            public-domain Mimova
france/reimsCathedral        public-domain Mattana
germany/aulaPalatina         public-domain Berthold Werner
germany/berlinCathedral      CC0-1.0       Gary Todd
germany/brandenburgGate      public-domain Evans1551
germany/neuschwansteinCastle CC0-1.0       cameralends
germany/schwerinPalace       CC0-1.0       Hermann Luyken
germany/wormsCathedral       public-domain Immanuel Giel
india/ajantaCave             public-domain Jonathanawhite
india/charminar              public-domain Goutamkhandelwal
india/goldenTemple           CC0-1.0       Jasdeep Singh
india/greatStupa             public-domain ArnoldBetten
india/hawaMahal              public-domain Janwiki
india/konarkSunTemple        public-domain Tetraktys
india/qutubMinar             CC0-1.0       pramadas
usa/canyondeChelly           public-domain Nikater
usa/mountRushmore            CC0-1.0       Eekim
usa/statueofLiberty          public-domain (WT-shared) Ypsilonatshared
wonders/christTheRedeemer    CC-BY-SA-4.0  Chensiyuan
wonders/colosseum            public-domain Urse Ovidiu
wonders/greatWallofChina     CC0-1.0       Nicolas Perrault III
wonders/tajMahal             CC-BY-SA-4.0  Yann
"""

PHOTOGRAPHS = (
    *read_rows(LOMIRI, "lomiri", BACKGROUNDS, _LOMIRI),
    *read_rows(LOMIRI_20, "lomiri", BACKGROUNDS, _LOMIRI_20),
    *read_rows(PLASMA, "plasma", "usr/share/wallpapers/{}/contents/images/2560x1600.jpg", _PLASMA),
    *read_rows(LXQT, "lxqt", "usr/share/lxqt/wallpapers/{}", _LXQT),
    *read_rows(GCOMPRIS, "gcompris", GAME.format("erase", ""), _ANIMALS),
    *read_rows(GCOMPRIS, "gcompris", GAME.format("clickgame", ""), _SEA),
    *read_rows(GCOMPRIS, "gcompris_farm", GAME.format("explore_farm_animals", "animals/"), _FARM),
    *read_rows(GCOMPRIS, "gcompris_world", GAME.format("explore_world_animals", "animals/"), _WORLD),
    *read_rows(GCOMPRIS, "gcompris", GAME.format("explore_monuments", ""), _MONUMENTS),
)
