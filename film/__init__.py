"""FILM frame interpolation: two photos in, the frames between them out.

    import film
    model = film.load()                                         # the default weights
    frames = list(film.interpolate(model, [x0, x1], times=3))   # 9 frames, RGB float32 in [0, 1]
    middle = model(x0[None], x1[None]).image                    # one call on batches

Submodules are imported when they are first used (PEP 562): `import film` costs nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
