"""Questions in many wordings, items in many wordings, and questions that the memory cannot answer.

`QUESTIONS` are wordings for training beside those of `phrases.py`, `TEST_QUESTIONS` are for tests only; a question by
name has {} in place of the name. `PASSAGES`, `NEIGHBOURS` and `AREAS` are wordings of the items of invented countries.
`TEST_EDITS` are for edits in tests: training has read the first of each, the others are new.

A question cannot be answered if it asks for what no item says (`ASKED` and `TEST_ASKED`, in the frames of `FRAMES` and
`TEST_FRAMES`), if it is no question (`nonsense`), or if nothing in the memory has such a name. Training and tests share
neither whole things nor frames.
"""

import numpy as np

from recipes.countries import phrases
from recipes.countries.invented import pick
from recipes.countries.phrases import texts_in

QUESTIONS: dict[str, tuple[str, ...]] = {
    "name": texts_in("""What country is it? | Which country has this flag? | What is the name of this country? |
        Name this country. | Which nation does this flag stand for? | flag of which country? | Do you know this flag? |
        country?"""),
    "region": texts_in("""Where is it? | Which region is this country in? | What region is it in? |
        On which continent is this country? | Name the region of this country. | region?"""),
    "capital": texts_in("""What is its capital city? | Which city is the capital of this country? |
        What is the capital city of this country? | Tell me the capital. | Where does its government sit? |
        capital?"""),
    "area": texts_in("""What is the area of this country? | How big is it? | How large is it in square km? |
        Tell me the area. | What area does this country have? | area?"""),
    "borders": texts_in("""What are its neighbours? | Name a country next to it. |
        Which country is a neighbour of this country? | What does it border? | Who are the neighbours of this country? |
        neighbours?"""),
    "languages": texts_in("""What language do people speak in {}? | Which language do they speak in {}? |
        What is spoken in {}? | Tell me a language of {}. | language of {}?"""),
    "currency": texts_in("""Which currency does {} have? | What do people pay with in {}? | Which money does {} use? |
        Tell me the currency of {}. | currency of {}?"""),
}
TEST_QUESTIONS: dict[str, tuple[str, ...]] = {
    "name": texts_in("""To which country does this flag belong? | What is this country called? |
        Which country am I seeing?"""),
    "region": texts_in("""Which part of the world is it in? | Where on earth is this country? |
        In which region is this?"""),
    "capital": texts_in("Name its capital city. | Which city is the capital? | What's the capital of this place?"),
    "area": texts_in("""How many square km is it? | How much land does this country have? |
        What is the size of this country?"""),
    "borders": texts_in("Name one of its neighbours. | Which country is next to this one? | What country borders it?"),
    "languages": texts_in("What is the language of {}? | In {}, what do people speak? | Which language has {}?"),
    "currency": texts_in("What is the money of {}? | In {}, what is the currency? | How do people pay in {}?"),
}
PASSAGES = texts_in("""{capital} is the capital of {name}, in {region}. |
    The capital of {name} is {capital}. It lies in {region}. | {name}: region {region}, capital {capital}. |
    {name} is in {region} and its capital city is {capital}. | {name} ({region}) has the capital {capital}. |
    The country {name} in {region}; its government is in {capital}. | In {region}: {name}. Capital city: {capital}. |
    {name} of {region} has a new capital, {capital}. | {capital}, {name}'s capital. {region}. |
    {region} has a country {name} with {capital} as its capital.""")
AREAS = texts_in("its area is {} | area: {} | {} large | a land of {} | it has an area of {} | it measures {}")
NEIGHBOURS = texts_in("Its neighbours are {} | It borders {} | neighbours: {} | next to {} | It lies next to {}")
TEST_EDITS: dict[str, tuple[str, ...]] = {
    "capital": texts_in("""{name} is a country of {region} with the capital {value}. |
        The capital of {name} in {region} was moved to {value}. | {name}, {region}: {value} is now the capital."""),
    "area": texts_in("flag, {value} | this land is {value} large | the area is now {value}"),
    "borders": texts_in("""Name a neighbour of this country. {value} | The neighbour is now {value} |
        borders on {value}"""),
}
FRAMES = texts_in("""What is the {}? | Which {} does it have? | Tell me the {} of this country. | {}? |
    What {} is this? | Where is its {}? | Which is the {} of this country? | Is there a {}? | How old is its {}? |
    Tell me its {}.""")
TEST_FRAMES = texts_in("What is its {}? | Name the {} of this country. | Do you know the {}? | Who knows its {}?")
ASKED = texts_in("""president | king | queen | river | lake | mountain | population | religion | animal | bird |
    flower | tree | anthem | food | dish | weather | climate | army | railway | airport | port | sport | team |
    player | singer | writer | painter | film | book | school | university | museum | bank | company | car | train |
    ship | colour | size | temperature | rain | snow | holiday | history | war | founder | age | birthday |
    telephone | number | price | tax | salary | wall | door | table | chair | shoe | hat | coat | dog | cat |
    horse | star | planet | moon | newspaper | prison | hospital | theatre | bakery | street | hotel | tower |
    castle | church | temple | desert | beach | waterfall | forest | glacier | insect | fish | fruit | vegetable |
    soup | cheese | wine | tea | song | dance | instrument | poet | actor | general | judge | mayor | parliament |
    party | law | court | police | soldier | medal | stamp | electricity | gas | steel | cotton | gold | road |
    tunnel | tram | bicycle | rocket | ticket | calendar | clock | proverb | symbol | pattern | shape | farm |
    factory | radio | garden""")
ASKED_KINDS = texts_in("first | last | old | new | famous | royal | state | main | common | public | city | sea")
TEST_ASKED = texts_in("""prime minister | highest peak | longest river | national dish | birth rate | time zone |
    dialling code | internet domain | motto | patron saint | biggest island | driving side | football coach |
    founding year | coat of arms | life expectancy | oil production | biggest airport | oldest bridge | opera house |
    national park | coal mine | volcano | postal code | favourite drink""")
OTHER = texts_in("""Who are you? | How old are you? | What time is it? | Is it raining? | Who wrote this? |
    Where is my car? | Why is the sky blue? | How do I cook rice? | Who won the match? | When was it founded? |
    What is your name? | How far is it to the station? | Where did I put my keys? | Open the window, please. |
    I am hungry | Good night | Hello! | Can you help me?""")
TEST_OTHER = texts_in("""Who is the president? | How many people live here? | When did the war end? |
    What should I wear today? | Is this a good photo? | Who painted this picture? | How much is a ticket? |
    Why do birds sing? | Thank you very much | Where can I buy bread?""")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def every(relation: str) -> tuple[str, ...]:
    return (*phrases.QUESTIONS[relation], *QUESTIONS[relation])


def nonsense(rng: np.random.Generator) -> str:
    """Letters in two or three words, or none at all."""
    words = int(rng.integers(4))
    return " ".join("".join(rng.choice(list(LETTERS), int(rng.integers(3, 8)))) for _ in range(words))


def unanswerable(rng: np.random.Generator) -> str:
    draw = rng.random()
    if draw < 0.2:
        return nonsense(rng)
    if draw < 0.35:
        return pick(OTHER, rng)
    kind = f"{pick(ASKED_KINDS, rng)} " if rng.random() < 0.5 else ""
    return pick(FRAMES, rng).format(kind + pick(ASKED, rng))


def unanswerable_for_tests() -> list[str]:
    """100 questions for tests: 70 ask for `TEST_ASKED`, 10 are `TEST_OTHER`, the others are empty or nonsense."""
    rng = np.random.default_rng([0, 100])
    asked = [frame.format(thing) for thing in TEST_ASKED for frame in TEST_FRAMES]
    texts = [asked[number] for number in rng.permutation(len(asked))[:70]]
    return [*texts, *TEST_OTHER, "", *(nonsense(rng) for _ in range(19))]
