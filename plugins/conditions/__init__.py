"""From a picture to what a plugin is shown of it: edges, a face's lines, a person's pose, depth, or a mask.

    from plugins import conditions

    edges = conditions.make("canny", image)                          # h w 3 in, h w 3 out, RGB float32 in [0, 1]
    face = conditions.make("face", image)                            # needs mediapipe, the extra `landmarks`
    face = conditions.make("face", image, landmarks=landmarks)       # does not
    depth = conditions.make("depth", image, depth=conditions.read_depth("depth.npy"))

A condition picture has its source's size and shows only what shall be kept: a generated picture follows its lines and
is free in all else. All kinds but the mask are those that MediaPipe's diffusion plugins were trained with. `registry`
holds them by name, `mirror` flips one so that left stays left.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
