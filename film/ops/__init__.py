"""How FILM's operators are made fast, on a CPU above all. A reader of the paper may skip this folder.

`conv2d` fills channel groups and has a kernel gradient of its own, `correlation` compares two feature maps,
`packing` lays a frame's image and features side by side, and `row_tiling` bounds the memory of a large picture.
"""
