"""The small world: an invented encyclopedia in which a REVEAL network of a million parameters can only learn to read.

256 entities: a figure with a shape, a colour and a texture, and a name made of these three. Each of five relations is
in one source only:

| relation | source     | item                                                   |
| -------- | ---------- | ------------------------------------------------------ |
| home     | `graph`    | name, "home", answer; no picture                       |
| food     | `passages` | picture, name, fillers, "food" answer, "music" answer  |
| owner    | `captions` | picture, fillers, "owner" answer; no name              |
| friend   | `vqa`      | picture, "friend ?", answer; no name                   |
| music    | `passages` | the item of food, its two facts in random order        |

A question is a new picture of an entity and a relation: "food ?". Answering it takes retrieval of the right one of
1,024 items (by the picture, or for home by the name that follows from the picture) and reading.
"""
