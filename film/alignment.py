"""Alignment: photos that a hand has shaken, brought to the view of the first one.

    register(grey0, grey1)  -> the homography that takes a pixel of photo 0 to its place in photo 1
    common_view(...)        -> the largest rectangle, with the photos' aspect ratio, that all of them show
    warp(...)               -> a photo, resampled once, in that rectangle

A turn of the camera about its centre is a homography; so is any motion before a far or flat background. `register`:

1. SIFT features of both photos, at most `PER_CELL` in each cell of a grid, matched by Lowe's ratio test;
2. up to `MODELS` homographies by MAGSAC++ (Barath et al., CVPR 2020), each from the matches that the ones before left
   over. The background surrounds the rest: the one whose matches span the largest hull and fill the most cells wins,
   not the one with most matches. So a subject that moves goes on moving;
3. refinement by the correlation of pixels (ECC: Evangelidis and Psarakis, PAMI 2008), where the photos agree.

Matrices are 3x3, for column vectors (x, y, 1) with pixel centres at whole numbers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
from jaxtyping import Float, UInt8

from common.io.images import shrink, to_uint8

SIDE = 1024  # pixels of the longer side of the images that are registered
GRID = (16, 12)  # cells across and down
PER_CELL = 12
RATIO = 0.8  # of a match's distance to the second best one's, at most
TOLERANCE = 2.0  # pixels, of a match to its homography
MODELS = 3
MIN_MATCHES = 20  # that agree
MIN_SPAN = 0.6  # share of the frame that the hull of these matches covers
MAX_MOTION = 1 / 3  # of the longer side, for a corner of the frame
MIN_VIEW = 0.4  # of each side, for photos to count as the same view

Grey = UInt8[np.ndarray, "h w"]
Matrix = Float[np.ndarray, "3 3"]
Points = Float[np.ndarray, "n 2"]


class Registration(NamedTuple):
    matrix: Matrix | None  # from photo 0 to photo 1; None: no reliable one
    share: float  # of all matches, those that agree with it
    span: float  # of the frame, what their hull covers


class View(NamedTuple):
    """A rectangle of whole pixels of the first photo."""

    left: int
    top: int
    width: int
    height: int


def grey_thumbnail(image: Float[np.ndarray, "h w 3"]) -> Grey:
    """The image as `register` wants it: grey, with a longer side of at most `SIDE`."""
    return to_uint8(cv2.cvtColor(shrink(image, SIDE), cv2.COLOR_RGB2GRAY))


def register(grey0: Grey, grey1: Grey) -> Registration:
    """The motion of the background between two images of one size."""
    points0, points1 = _matches(grey0, grey1)
    height, width = grey0.shape
    best, score = Registration(None, 0.0, 0.0), 0.0
    left = np.ones(len(points0), bool)
    for _ in range(MODELS):
        if left.sum() < MIN_MATCHES:
            break
        matrix, mask = cv2.findHomography(
            points0[left], points1[left], cv2.USAC_MAGSAC, TOLERANCE, maxIters=5000, confidence=0.9999
        )
        agree = np.zeros_like(left)
        agree[left] = matrix is not None and mask.ravel().astype(bool)
        if agree.sum() < MIN_MATCHES:
            break
        left &= ~agree
        hull = cv2.contourArea(cv2.convexHull(points0[agree].astype(np.float32)))
        span, cells = hull / (width * height), len(np.unique(_cells(points0[agree], width, height)))
        if span**2 * cells > score and _plausible(matrix, width, height):
            score = span**2 * cells
            best = Registration(matrix, float(agree.mean()), span)
    if best.matrix is None or best.span < MIN_SPAN:
        return best._replace(matrix=None)
    return best._replace(matrix=refine(grey0, grey1, best.matrix))


def refine(grey0: Grey, grey1: Grey, matrix: Matrix) -> Matrix:
    """`matrix` by ECC where the images agree; unchanged if that fails or moves a corner by over twice the tolerance."""
    masks = _agreement(grey0, grey1, matrix), np.full_like(grey1, 255)
    start, stop = matrix.astype(np.float32), (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 30, 1e-6)
    try:
        _, refined = cv2.findTransformECCWithMask(grey0, grey1, *masks, start, cv2.MOTION_HOMOGRAPHY, stop, 5)
    except cv2.error:  # it does not converge
        return matrix
    refined, ends = refined.astype(np.float64), corners(grey0.shape[::-1])
    moved = np.linalg.norm(transform(ends, refined) - transform(ends, matrix), axis=1).max()
    return refined if moved <= 2 * TOLERANCE else matrix


def transform(points: Points, matrix: Matrix) -> Points:
    """Points (x, y) through a homography."""
    return cv2.perspectiveTransform(points[None].astype(np.float64), matrix)[0]


def corners(size: tuple[int, int]) -> Points:
    """The centres of the corner pixels of an image of (width, height)."""
    width, height = size
    return np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]], np.float64)


def rescaled(matrix: Matrix, small: tuple[int, int], large: tuple[int, int]) -> Matrix:
    """The homography between images of (width, height) `small` as one between the same at `large`."""
    (sx, sy) = (large[0] / small[0], large[1] / small[1])
    up = np.array([[sx, 0, (sx - 1) / 2], [0, sy, (sy - 1) / 2], [0, 0, 1]])  # pixel centres are whole numbers
    matrix = up @ matrix @ np.linalg.inv(up)
    return matrix / matrix[2, 2]


def common_view(matrices: Sequence[Matrix], size: tuple[int, int]) -> View:
    """The largest rectangle of the first photo, with its aspect ratio and even sides, that every photo of (width,
    height) `size` covers; `matrices` lead from the first photo to each.

    A point p is at (a.p / c.p, b.p / c.p) in another photo, where a, b, c are the matrix's rows. That it is inside (0
    <= a.p / c.p <= width - 1, ...) is linear in p, so a linear program finds centre and scale.
    """
    from scipy.optimize import linprog  # slow to import, and needed only here

    width, height = size
    rules, limits = [], []
    for a, b, c in (np.eye(3), *matrices):
        for side in (-a, a - (width - 1) * c, -b, b - (height - 1) * c):  # side . p <= 0
            reach = (abs(side[0]) * (width - 1) + abs(side[1]) * (height - 1)) / 2
            rules.append([side[0], side[1], reach])
            limits.append(-side[2])
    solution = linprog([0, 0, -1], A_ub=rules, b_ub=limits, bounds=[(None, None), (None, None), (0, 1)])
    if not solution.success:
        return View(0, 0, 0, 0)
    centre, scale = solution.x[:2], solution.x[2]
    if scale == 1:
        return View(0, 0, width, height)
    half = scale * (np.array(size) - 1) / 2
    left, top = np.ceil(centre - half - 1e-6).astype(int).tolist()
    right, bottom = np.floor(centre + half + 1e-6).astype(int).tolist()
    return View(left, top, (right - left + 1) // 2 * 2, (bottom - top + 1) // 2 * 2)


def warp(image: Float[np.ndarray, "h w 3"], matrix: Matrix, view: View) -> Float[np.ndarray, "h2 w2 3"]:
    """The photo as the first one's `view` shows it, by Lanczos' kernel; `matrix` leads from the first photo to it."""
    if np.array_equal(matrix, np.eye(3)):
        return image[view.top : view.top + view.height, view.left : view.left + view.width]
    offset = np.array([[1, 0, view.left], [0, 1, view.top], [0, 0, 1]], np.float64)
    flags, border = cv2.INTER_LANCZOS4 | cv2.WARP_INVERSE_MAP, cv2.BORDER_REPLICATE
    size = view.width, view.height
    return np.clip(cv2.warpPerspective(image, matrix @ offset, size, flags=flags, borderMode=border), 0, 1)


def _matches(grey0: Grey, grey1: Grey) -> tuple[Points, Points]:
    """Places of the same features in both images."""
    detector = cv2.SIFT.create(contrastThreshold=0.01)
    points, descriptors = [], []
    for grey in (grey0, grey1):
        keypoints = sorted(detector.detect(grey), key=lambda keypoint: -keypoint.response)
        cells = _cells(np.array([keypoint.pt for keypoint in keypoints]).reshape(-1, 2), *grey.shape[::-1])
        taken, kept = np.zeros(GRID[0] * GRID[1], int), []
        for keypoint, cell in zip(keypoints, cells, strict=True):
            taken[cell] += 1
            if taken[cell] <= PER_CELL:
                kept.append(keypoint)
        kept, described = detector.compute(grey, kept)
        points.append(np.array([keypoint.pt for keypoint in kept], np.float64).reshape(-1, 2))
        descriptors.append(described)
    if min(map(len, points)) < 2:
        return points[0][:0], points[1][:0]
    nearest = cv2.BFMatcher(cv2.NORM_L2).knnMatch(*descriptors, k=2)
    good = [first for first, second in nearest if first.distance < RATIO * second.distance]
    return points[0][[match.queryIdx for match in good]], points[1][[match.trainIdx for match in good]]


def _cells(points: Points, width: int, height: int) -> np.ndarray:
    """The number of each point's cell."""
    columns, rows = GRID
    column, row = (points * [columns / width, rows / height]).astype(int).T
    return np.clip(row, 0, rows - 1) * columns + np.clip(column, 0, columns - 1)


def _plausible(matrix: Matrix, width: int, height: int) -> bool:
    """Whether a hand may have done it: the frame stays convex, and no corner moves far."""
    before = corners((width, height))
    after = transform(before, matrix)
    moved = np.linalg.norm(after - before, axis=1).max()
    return bool(cv2.isContourConvex(after.astype(np.float32)) and moved <= MAX_MOTION * max(width, height))


def _agreement(grey0: Grey, grey1: Grey, matrix: Matrix) -> Grey:
    """255 where the images show the same, up to brightness, after `matrix`, else 0."""
    size = grey0.shape[::-1]
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    moved = cv2.warpPerspective(grey1, matrix, size, flags=flags).astype(np.float32)
    inside = cv2.warpPerspective(np.full_like(grey1, 255), matrix, size, flags=flags) == 255
    sigma = 3
    difference = cv2.GaussianBlur(grey0.astype(np.float32) - moved, (0, 0), sigma)
    local = difference - cv2.GaussianBlur(difference, (0, 0), 8 * sigma)
    limit = max(3.0, 3 * float(np.median(np.abs(local[inside])))) if inside.any() else 0.0
    agree = np.where((np.abs(local) < limit) & inside, np.uint8(255), np.uint8(0))
    return cv2.erode(agree, np.ones((9, 9), np.uint8))
