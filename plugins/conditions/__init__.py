"""Condition images for a control: edges, the lines of a face, a person's pose, depth, a mask, or a scribble.

    from plugins import conditions

    edges = conditions.make("canny", image)                          # h w 3 in, h w 3 out, RGB float32 in [0, 1]
    face = conditions.make("face", image)                            # needs mediapipe, the extra `landmarks`
    face = conditions.make("face", image, landmarks=landmarks)       # does not
    depth = conditions.make("depth", image, depth=conditions.read_depth("depth.npy"))
    flipped = conditions.mirror("face", face)                        # left stays left

A condition image has its source's size. The generated image follows its lines and is free elsewhere. MediaPipe trained
diffusion plugins on edges, faces, people and depth.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
