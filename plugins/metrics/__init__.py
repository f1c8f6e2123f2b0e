"""How well a controlled model obeys its condition, and how good its pictures are.

Two questions that pull against each other: a picture may follow every edge and look like nothing, or look fine and
ignore them. Both are answered beside anchors, because no number of either kind means anything alone.

| question | compares | modules |
| --- | --- | --- |
| fidelity | each picture with its target | `fidelity`, `estimated`: of `edge_maps`, `masks`, `depth`, `landmarks` |
| quality | a set of pictures with a real set | `features`, then `quality` (made of `frechet` and `kernels`) |
| against what | control, no control, wrong control | `anchors` |

    from plugins import metrics
    metrics.edge_f1(metrics.edges(picture), metrics.edges(real)).f1
    network = metrics.features.lite0()
    metrics.compare(network.name, network(pictures), network(real))

Pictures are RGB in [0, 1]; all is NumPy, except for the networks of features. Names are imported when they are first
used (PEP 562), as in `plugins.diffusion`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
