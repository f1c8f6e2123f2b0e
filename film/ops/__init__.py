"""FILM's operators, made fast, on a CPU above all. A reader of the paper may skip this folder.

`convolution` is the one layer, `resample` pools and resizes, `correlation` compares two feature maps, `packing` lays a
frame's image and features side by side, and `row_tiling` bounds the memory of a large image.
"""
