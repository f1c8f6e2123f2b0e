"""The photograph that the MediaPipe fixtures were made from: `astronaut.webp`, without loss, read by tests/plugins.

    pip install scikit-image==0.26.0 && python tests/data/plugins/make_astronaut.py      # writes beside itself

It shows Eileen Collins, a photograph by NASA (https://www.flickr.com/photos/nasacommons/16504233985), in the public
domain; scikit-image carries it. `mediapipe_astronaut.npz` holds its landmarks by MediaPipe 0.10.14, its edges by
OpenCV 5.0.0 and a piece of MediaPipe's rendering; `mediapipe_connections.json` MediaPipe's connection lists.
"""

from pathlib import Path

import skimage.data
from PIL import Image

if __name__ == "__main__":
    picture = Image.fromarray(skimage.data.astronaut())
    picture.save(Path(__file__).parent / "astronaut.webp", lossless=True, method=6)
