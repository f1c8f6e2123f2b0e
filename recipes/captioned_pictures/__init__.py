"""Captioned pictures, 64x64: what the tiny diffusion base learns from, and what it is tested on.

Nothing is downloaded but published packages, by their ordinary tools (npm and apt-get):

| source (package)                                  | style in the caption                   | licence                 |
| ------------------------------------------------- | -------------------------------------- | ----------------------- |
| Noto emoji (npm emoji-datasource-google)          | "noto emoji"                           | Apache-2.0, wrapper MIT |
| Fluent emoji (npm @lobehub/fluent-emoji-3d)       | "3d emoji"                             | MIT                     |
| OpenMoji (npm openmoji)                           | "line emoji"                           | CC-BY-SA-4.0            |
| all emoji's names and tags (npm emojibase-data)   |                                        | MIT; CLDR: Unicode-3.0  |
| Open Clip Art 0.18 (Debian openclipart-png, -svg) | "clip art", "black and white clip art" | public domain           |
| Tux Paint stamps (Debian tuxpaint-stamps-default) | none: a sentence of their own          | GPL-2                   |

A caption is a label and a style: "red apple, 3d emoji". Stages: `recipes.downloads.archives` gets the packages and reads their
members as streams -> `emoji`, `clipart`, `stamps` say which member is which label -> `picture` makes a thumbnail on
white -> `splits` drops repetitions and holds labels back -> `prepare` writes one folder:

    images.npy   uint8 [n 64 64 3], RGB, memory-mapped by its readers
    index.json   for each picture: label, style, tags, group, source, mirror (may it be flipped?), split; and what the
                 archives were, their licences, the settings
    tokenizer/   a small CLIP vocabulary learnt from the captions of the training pictures (`recipes.captioned_pictures.train_tokenizer`)

Splits: `train`; `unseen`, all pictures of 64 labels; `unseen_style`, one style each of 64 other labels, which training
sees in their other styles; `test`, the stamps: mostly photographs, none of which is ever trained on.

    python -m recipes.captioned_pictures data/captioned64
"""
