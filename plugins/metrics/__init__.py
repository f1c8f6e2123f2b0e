"""Metrics of controlled generation: fidelity to the condition, and quality of the images.

The two conflict: an image may follow every edge and look like nothing, or look fine and ignore the condition. Neither
number means anything without anchors.

| question | compares | modules |
| --- | --- | --- |
| fidelity | each image with its target | `fidelity` (edges, masks), `estimated` (depth, landmarks) |
| quality | a set of images with a real set | `features`, then `quality` |
| against what | control, no control, wrong control | `anchors` |

    from plugins import metrics
    metrics.edge_f1(metrics.edges(image), metrics.edges(real)).f1
    network = metrics.features.lite0()
    metrics.compare(network.name, network(images), network(real))

Images are RGB in [0, 1]; all but the networks is NumPy.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
