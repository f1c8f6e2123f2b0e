"""The small world: a made-up encyclopedia on which a REVEAL of a million parameters can be seen to learn, or not.

256 entities, each a figure with a shape, a colour and a texture and a name made of these three. Five things are known
about each, and each of the five is written in one source of knowledge only:

| relation | source     | an item of it                                          |
| -------- | ---------- | ------------------------------------------------------ |
| home     | `graph`    | name, "home", answer; no picture                       |
| food     | `passages` | picture, name, fillers, "food" answer, "music" answer  |
| owner    | `captions` | picture, fillers, "owner" answer; no name              |
| friend   | `vqa`      | picture, "friend ?", answer; no name                   |
| music    | `passages` | (the item of food, the two facts in any order)         |

A question is a new picture of an entity and a relation: "food ?". To answer it, the right one of 1,024 items has to be
found (by the picture, and for home by the name that belongs to what the picture shows) and the right word read. Nothing
else helps: answers are drawn at random, a fifth of the entities is never asked about in training, and the answer words
change their meaning with every batch (`data.py`), so nothing can be learnt by heart. What is true of the world is known
exactly, and so is what has to happen when a source is dropped, a fact edited, an item deleted or an entity added.

    entities.py      parts, names, neighbours, who is held out
    drawing.py       pictures:   `python -m recipes.small_world.drawing sheet.png`
    facts.py         relations, answers, which source knows what; `World`
    vocabulary.py    the words
    items.py         what memory is made from
    data.py          `WorldConfig`: the training stream and the evaluation's questions
"""
