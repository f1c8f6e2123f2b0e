"""Captioned pictures, 64x64: training and test data of the base diffusion-small (README.md).

| source (package)                                  | style in the caption                   | licence                 |
| ------------------------------------------------- | -------------------------------------- | ----------------------- |
| Noto emoji (npm emoji-datasource-google)          | "noto emoji"                           | Apache-2.0, wrapper MIT |
| Fluent emoji (npm @lobehub/fluent-emoji-3d)       | "3d emoji"                             | MIT                     |
| OpenMoji (npm openmoji)                           | "line emoji"                           | CC-BY-SA-4.0            |
| names and tags of all emoji (npm emojibase-data)  |                                        | MIT; CLDR: Unicode-3.0  |
| Open Clip Art 0.18 (Debian openclipart-png, -svg) | "clip art", "black and white clip art" | public domain           |
| Tux Paint stamps (Debian tuxpaint-stamps-default) | none: a sentence                       | GPL-2                   |

A caption is a label and a style: "red apple, 3d emoji". `emoji`, `clipart` and `stamps` label the pictures of their
packages, `splits` removes duplicates and holds labels out, `prepare` writes the folder:

    python -m recipes.captioned_pictures data/captioned64
"""
