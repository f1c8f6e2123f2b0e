"""Global matching: flow from a search of the whole frames, without weights of its own.

Coarse to fine, a predictor sees what is near: a thing that moves farther than its own size is gone from the levels on
which its motion is small (`film.flow`). And it interpolates flow from level to level, which mixes two motions at every
outline. So where the estimated flow leads to different colours in the two frames, flow is also searched for, and
carried to finer levels by a choice:

1. `search.search`, at `LEVEL`, an eighth of the size: the flow of each frame on its own grid, what it hides of the
   other frame, and from both the flow of the frame in between. It is taken where it is smooth and leaves less than
   70 % of the difference of colours; elsewhere the estimated flow stays.
2. `refinement.refine`, at each finer level: a pixel takes one of the four flows that interpolation would mix, or one
   of those around it, by costs of the same kind. The predictor of the level corrects it (`film.flow`).
3. `refinement.visibility_logit`: a frame in which a pixel leads to another motion than its own hides the pixel, and
   counts less in the mixture (`film.fusion.blend`). A pixel is of one motion or of the other, so outlines are
   smoothed in the end (`refinement.antialiased`).

Flow is from the first frame to the second, or, on a frame's own grid, to the other one, in pixels of its level. `2b`
stands for first frames, then second ones. In here, flow and colours are planes, `c b h w` (`planes.py`).
"""
