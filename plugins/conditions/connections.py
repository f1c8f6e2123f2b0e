"""Which landmarks are joined by lines, in which colour, and which ones change places in a mirror.

MediaPipe's numbers (0.10.14): a face has 478 points, 468 of the mesh and five for each iris; a body 33; a hand 21.
"Left" is the person's own left, which is on the right of a picture that shows them from the front.

A line here is a path of numbers, "33 7 163 144": an edge from each to the next. The paths hold MediaPipe's connection
lists edge by edge, each in its direction, as OpenCV rounds a slanted line by where it starts.

Colours are chosen so that a mirror does to them what it does to the person: left differs from right only by green and
blue changing places, and what lies in the middle has as much of one as of the other. Those of the face are MediaPipe's
(white oval and lips, green left, blue right); for bodies and hands none are published, and these are ours.

The mirror's table for the face was measured: a reflection, turned and moved until 16 points of known places met, took
the landmarks of a photograph onto each other, each onto exactly one and back, none farther off than 1.4 px of 512. The
same photograph's landmarks by Holistic, which looks through another crop, gave the same table, and MediaPipe's mesh
agrees: 1,316 of its 1,322 edges go over into edges; the other six are diagonals that run differently on either side.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

FACE_POINTS, POSE_POINTS, HAND_POINTS = 478, 33, 21

Colour = tuple[float, float, float]
WHITE, RED = (1.0, 1.0, 1.0), (1.0, 0.0, 0.0)
GREEN, BLUE = (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
ORANGE, ROSE = (1.0, 0.5, 0.0), (1.0, 0.0, 0.5)
LIME, VIOLET = (0.5, 1.0, 0.0), (0.5, 0.0, 1.0)
YELLOW, MAGENTA = (1.0, 1.0, 0.0), (1.0, 0.0, 1.0)


@dataclass(frozen=True)
class Group:
    """Lines of one name and colour; each path joins every number to the next."""

    name: str
    colour: Colour
    paths: tuple[str, ...]

    @property
    def edges(self) -> list[tuple[int, int]]:
        """Its edges, in the order and direction in which they are drawn."""
        numbers = [[int(number) for number in path.split()] for path in self.paths]
        return [edge for path in numbers for edge in itertools.pairwise(path)]


OVAL = (
    "10 338 297 332 284 251 389 356 454 323 361 288 397 365 379 378 400 377 "
    "152 148 176 149 150 136 172 58 132 93 234 127 162 21 54 103 67 109 10"
)
LIPS = (
    "61 146 91 181 84 17 314 405 321 375 291",
    "61 185 40 39 37 0 267 269 270 409 291",
    "78 95 88 178 87 14 317 402 318 324 308",
    "78 191 80 81 82 13 312 311 310 415 308",
)
LEFT_EYE = ("263 249 390 373 374 380 381 382 362", "263 466 388 387 386 385 384 398 362")
RIGHT_EYE = ("33 7 163 144 145 153 154 155 133", "33 246 161 160 159 158 157 173 133")

FACE = (
    Group("oval", WHITE, (OVAL,)),
    Group("lips", WHITE, LIPS),
    Group("left eye", GREEN, LEFT_EYE),
    Group("left eyebrow", GREEN, ("276 283 282 295 285", "300 293 334 296 336")),
    Group("left iris", GREEN, ("474 475 476 477 474",)),
    Group("right eye", BLUE, RIGHT_EYE),
    Group("right eyebrow", BLUE, ("46 53 52 65 55", "70 63 105 66 107")),
    Group("right iris", BLUE, ("469 470 471 472 469",)),
)
# The pose in parts, as only some of them are drawn: a face and hands with landmarks of their own take their place.
BODY = (
    Group("trunk", RED, ("11 12", "11 23", "12 24", "23 24")),
    Group("left arm", ORANGE, ("11 13 15",)),
    Group("right arm", ROSE, ("12 14 16",)),
    Group("left leg", LIME, ("23 25 27 29 31", "27 31")),
    Group("right leg", VIOLET, ("24 26 28 30 32", "28 32")),
)
HEAD = (
    Group("mouth", WHITE, ("9 10",)),
    Group("left of the head", GREEN, ("0 1 2 3 7",)),
    Group("right of the head", BLUE, ("0 4 5 6 8",)),
)
LEFT_PALM = (Group("left palm", YELLOW, ("15 17 19", "15 19", "15 21")),)
RIGHT_PALM = (Group("right palm", MAGENTA, ("16 18 20", "16 20", "16 22")),)
FINGERS = ("0 1 2 3 4", "0 5 6 7 8", "0 17 18 19 20", "5 9 10 11 12", "9 13 14 15 16", "13 17")
LEFT_HAND = (Group("left hand", YELLOW, FINGERS),)
RIGHT_HAND = (Group("right hand", MAGENTA, FINGERS),)

# right:left; what is not named lies in the middle.
_FACE_PAIRS = """
    3:248 7:249 20:250 21:251 22:252 23:253 24:254 25:255 26:256 27:257 28:258 29:259 30:260 31:261 32:262 33:263
    34:264 35:265 36:266 37:267 38:268 39:269 40:270 41:271 42:272 43:273 44:274 45:275 46:276 47:277 48:278 49:279
    50:280 51:281 52:282 53:283 54:284 55:285 56:286 57:287 58:288 59:289 60:290 61:291 62:292 63:293 64:294 65:295
    66:296 67:297 68:298 69:299 70:300 71:301 72:302 73:303 74:304 75:305 76:306 77:307 78:308 79:309 80:310 81:311
    82:312 83:313 84:314 85:315 86:316 87:317 88:318 89:319 90:320 91:321 92:322 93:323 95:324 96:325 97:326 98:327
    99:328 100:329 101:330 102:331 103:332 104:333 105:334 106:335 107:336 108:337 109:338 110:339 111:340 112:341
    113:342 114:343 115:344 116:345 117:346 118:347 119:348 120:349 121:350 122:351 123:352 124:353 125:354 126:355
    127:356 128:357 129:358 130:359 131:360 132:361 133:362 134:363 135:364 136:365 137:366 138:367 139:368 140:369
    141:370 142:371 143:372 144:373 145:374 146:375 147:376 148:377 149:378 150:379 153:380 154:381 155:382 156:383
    157:384 158:385 159:386 160:387 161:388 162:389 163:390 165:391 166:392 167:393 169:394 170:395 171:396 172:397
    173:398 174:399 176:400 177:401 178:402 179:403 180:404 181:405 182:406 183:407 184:408 185:409 186:410 187:411
    188:412 189:413 190:414 191:415 192:416 193:417 194:418 196:419 198:420 201:421 202:422 203:423 204:424 205:425
    206:426 207:427 208:428 209:429 210:430 211:431 212:432 213:433 214:434 215:435 216:436 217:437 218:438 219:439
    220:440 221:441 222:442 223:443 224:444 225:445 226:446 227:447 228:448 229:449 230:450 231:451 232:452 233:453
    234:454 235:455 236:456 237:457 238:458 239:459 240:460 241:461 242:462 243:463 244:464 245:465 246:466 247:467
    468:473 469:476 470:475 471:474 472:477
"""


def swap_table(count: int, pairs: Iterable[tuple[int, int]]) -> Int[np.ndarray, " count"]:
    """Of each landmark the one it becomes in a mirror; those in no pair stay what they are."""
    table = np.arange(count)
    for right, left in pairs:
        table[right], table[left] = left, right
    return table


def _face_pairs() -> list[tuple[int, int]]:
    pairs = [pair.split(":") for pair in _FACE_PAIRS.split()]
    return [(int(right), int(left)) for right, left in pairs]


FACE_SWAP = swap_table(FACE_POINTS, _face_pairs())
POSE_SWAP = swap_table(POSE_POINTS, [(4, 1), (5, 2), (6, 3), *((left + 1, left) for left in range(7, 33, 2))])
HAND_SWAP = np.arange(HAND_POINTS)  # a left hand becomes a right one, finger for finger
