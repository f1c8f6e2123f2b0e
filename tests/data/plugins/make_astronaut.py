"""The photograph of the MediaPipe fixtures, `astronaut.webp`, and what MediaPipe and OpenCV find on it.

    pip install mediapipe==0.10.14 scikit-image==0.26.0 && python tests/data/plugins/make_astronaut.py

writes beside itself. The photograph shows Eileen Collins; it is NASA's (https://www.flickr.com/photos/nasacommons/
16504233985), in the public domain, and scikit-image carries it. It is stored at half its size, without loss.

`mediapipe_astronaut.npz` holds its landmarks by MediaPipe 0.10.14 and its edges by OpenCV 5.0.0. It keeps a piece of
MediaPipe's rendering of a face, `render_rgb` at `render_crop_yx` of 512x512, and the landmarks `render_face478` that
were rendered. `mediapipe_connections.json` holds MediaPipe's connection lists.
"""

from pathlib import Path

import cv2
import mediapipe
import numpy as np
import skimage.data
from PIL import Image

HERE = Path(__file__).parent
FILE = HERE / "mediapipe_astronaut.npz"


def points(found, *more: str) -> np.ndarray:
    return np.array([[getattr(p, name) for name in ("x", "y", "z", *more)] for p in found.landmark], np.float32)


if __name__ == "__main__":
    picture = Image.fromarray(skimage.data.astronaut()).reduce(2)
    picture.save(HERE / "astronaut.webp", lossless=True, quality=100, method=6)
    pixels = np.asarray(picture)
    mesh = mediapipe.solutions.face_mesh.FaceMesh(static_image_mode=True, refine_landmarks=True)
    holistic = mediapipe.solutions.holistic.Holistic(static_image_mode=True, refine_face_landmarks=True)
    person, grey = holistic.process(pixels), cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    with np.load(FILE) as old:
        arrays = {name: old[name] for name in old.files if name.startswith("render_")}
    arrays["face478"] = points(mesh.process(pixels).multi_face_landmarks[0])
    arrays["holistic_pose33"] = points(person.pose_landmarks, "visibility")
    arrays["holistic_face478"] = points(person.face_landmarks)
    for name, l2 in (("canny_100_200", False), ("canny_100_200_l2", True)):
        arrays[name] = np.packbits(cv2.Canny(grey, 100, 200, L2gradient=l2) > 0)
    np.savez_compressed(FILE, **arrays)
