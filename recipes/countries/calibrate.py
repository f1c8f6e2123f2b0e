"""Calibrates doubt: writes views, weights of doubt and a threshold into the header of exported weights.

    python -m recipes.countries.calibrate out/shipped

Asked are questions about training countries, in the wordings of training: flags of the training's icon sets as files
and before pictures of `scenery.py` that the tower has not learnt from, and names; and some 1,285 without an answer
(`wordings.unanswerable`, names that nobody has, such pictures without a flag). `reveal.processing.doubt.fit` learns
which answers were right, `fit_probe` the wordings apart from what no item answers. The threshold, if none is given,
doubts `LOST` of the right answers here; the tower has seen these flags, so others are answered less surely.
"""

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tyro
from flax import nnx
from jaxtyping import Float

from common import terminal
from common.io.images import to_uint8
from recipes.countries import scenery, wordings
from recipes.countries.augmentation import photograph
from recipes.countries.data import CountriesConfig
from recipes.countries.drawn_evaluation import SIDE, DrawnEvaluation, Picture, as_file
from recipes.countries.facts import RELATIONS
from recipes.countries.invented import pick
from recipes.countries.pairs import FlagPairs
from recipes.countries.phrases import BY_FLAG, QUESTIONS
from reveal.metrics.calibration import calibration_error
from reveal.network import weights
from reveal.network.model import Reveal
from reveal.processing.doubt import Doubt, Signals, fit, fit_probe
from reveal.processing.images import Views
from reveal.reader import Reader, text_mean

VIEWS = Views(  # weights for a tower of weight 4
    ((0.75, 3), (0.5, 5), (0.38, 7)), size_cost=0.3, background=0.25
)
SHARES = (0.3, 1.0)  # of the picture's width
LOST = 0.025
ANSWERABLE, UNANSWERABLE, EMPTY = 2000, 600, 600  # questions
NAMELESS = 300  # draws, of which those of a relation by name count: some 85 questions
KNOWN, STRANGE = 6, 4000  # for the probe: draws of each wording, and of questions without an answer


def calibrate(folder: Path, pairs: FlagPairs, seed: int = 0, threshold: float | None = None) -> tuple[Doubt, float]:
    """Rewrites the weights in `folder`; returns doubt, and its calibration error on the same questions. Raises OSError,
    ValueError for weights or data that are not there."""
    file = weights.file_of(folder)
    model, header = weights.load_with_metadata(file)
    data, rng = pairs.world, np.random.default_rng([seed, 3])
    evaluation = DrawnEvaluation(data)
    pictures, texts, subjects, relations = asked(pairs, rng)
    with tempfile.TemporaryDirectory() as scratch:
        reader = Reader(model, read_item=data.read_item)
        reader.build(Path(scratch) / "memory", data.memory_items(), data.sources)
        output = evaluation.ask(reader, texts, pictures, VIEWS)
    answerable = output._replace(tokens=output.tokens[: len(subjects)])
    right = np.pad(evaluation.correct(answerable, subjects, relations), (0, len(texts) - len(subjects)))
    written = np.array([bool(data.vocabulary.decode(tokens)) for tokens in output.tokens])
    names = [data.atlas.countries[country].name for country in pairs.real_flags]
    texts = [text for relation in RELATIONS for text in wordings.every(relation)] * KNOWN
    known = sorted({text.format(pick(names, rng)) for text in texts})
    strange = sorted({wordings.unanswerable(rng) for _ in range(STRANGE)})

    def text_means(texts: Sequence[str]) -> Float[np.ndarray, "n d"]:
        tokens = np.stack([data.question_tokens(text) for text in texts])
        return np.asarray(text_mean(nnx.jit(Reveal.encode_query)(model, tokens), tokens.shape[1]))

    probe = fit_probe(text_means(known), text_means(strange))
    doubt = fit(Signals(*(values[written] for values in output.signals())), right[written], probe, LOST)
    doubt = doubt if threshold is None else dataclasses.replace(doubt, threshold=threshold)
    processor = {**header.metadata["processor"], "views": dataclasses.asdict(VIEWS), "doubt": doubt.as_json()}
    metadata = {**header.metadata, "processor": processor}
    params = nnx.to_pure_dict(nnx.state(model))
    weights.save(file, params, model.config, metadata=metadata, dtype="float16", overwrite=True)
    return doubt, calibration_error(evaluation.probability(doubt, output), right)


def asked(pairs: FlagPairs, rng: np.random.Generator) -> tuple[list[Picture | None], list[str], list[int], list[str]]:
    """Pictures (None: of a question by name) and questions, those with an answer first, of which the subjects and
    relations are given too."""
    data, flags, grounds = pairs.world, pairs.real_flags, scenery.load(pairs.scenery, "calibration")
    by_flag = [relation for relation in RELATIONS if relation in BY_FLAG]
    pictures: list[Picture | None] = []
    texts, subjects, relations = [], [], []

    def flag() -> tuple[int, Picture]:
        country = int(flags[rng.integers(len(flags))])
        drawing, aspect = pairs.drawing(country, rng)
        if rng.random() < 0.5:
            return country, as_file(drawing, aspect, emoji=bool(rng.random() < 0.3))
        ground, share = grounds[rng.integers(len(grounds))], rng.uniform(*SHARES)
        made = photograph(drawing, aspect, ground, SIDE, rng, (share, share), 0.0, plain=True)
        return country, to_uint8(made)

    while len(texts) < ANSWERABLE:
        relation = RELATIONS[rng.integers(len(RELATIONS))]
        country, picture = flag()
        if not data.askable[country, RELATIONS.index(relation)]:
            continue
        texts.append(pick(wordings.every(relation), rng).format(data.atlas.countries[country].name))
        pictures.append(picture if relation in BY_FLAG else None)
        subjects.append(country)
        relations.append(relation)
    for _ in range(UNANSWERABLE):
        pictures.append(flag()[1])
        texts.append(wordings.unanswerable(rng))
    for _ in range(NAMELESS):
        relation = RELATIONS[rng.integers(len(RELATIONS))]
        if relation not in BY_FLAG:
            name = "".join(rng.permutation(list(data.atlas.countries[flags[rng.integers(len(flags))]].name)))
            pictures.append(None)
            texts.append(pick(wordings.every(relation), rng).format(name.strip().capitalize()))
    for _ in range(EMPTY):
        ground = grounds[rng.integers(len(grounds))]
        height, width = (max(40, int(side * rng.uniform(0.5, 1))) for side in ground.shape[:2])
        top, left = int(rng.integers(ground.shape[0] - height + 1)), int(rng.integers(ground.shape[1] - width + 1))
        pictures.append(ground[top : top + height, left : left + width])
        texts.append(pick(QUESTIONS[by_flag[rng.integers(len(by_flag))]], rng))
    return pictures, texts, subjects, relations


def main(
    folder: tyro.conf.Positional[Path],
    drawings: str = "data/flag_drawings",
    scenery: str = "data/flag_scenery",
    threshold: float | None = None,
) -> None:
    """Calibrate the weights in FOLDER; an answer whose probability is below the threshold is doubted."""
    pairs = FlagPairs(world=CountriesConfig(invented=0), drawings=drawings, scenery=scenery)
    doubt, error = calibrate(folder, pairs, threshold=threshold)
    terminal.say(f"{folder}: doubted below {doubt.threshold:.3f}, calibration error {error:.3f} on the same questions")


if __name__ == "__main__":
    terminal.program(main)
