"""Flags as others draw and photograph them, other wordings, and doubt: how far the network generalises.

    python -m recipes.countries.drawings data/flag_drawings
    python -m recipes.countries.scenery data/flag_scenery
    python eval.py experiment=countries_joint evaluation=countries_drawn weights=reveal/weights/countries

All flags are of held-out countries, which the memory shows in one drawing (`flag-icons`). Icon sets and photographs are
those that no training has seen, but for `bundled`.

| row | the question shows |
| --- | --- |
| bundled | the drawing of the memory, as a file |
| another drawing | country-flag-icons, as a file |
| emoji | Noto, and OpenMoji, on white |
| 70 %, 35 % of a photo | the memory's drawing, or country-flag-icons, that wide, before a photograph |
| other wordings | `bundled`, asked as in `wordings.TEST_QUESTIONS` |
| two hops | languages and currency of `bundled` |
| edited, wording N | a fact of each item changed, 1 as training words it, 2 and 3 anew; old facts: the former answers |
| deleted, no memory | `bundled`, when all items about the country are deleted, and without items |

`nearest pixels`: the country whose flag in the memory is nearest by 16 x 12 raw pixels, and its facts; `in views` among
all views of the picture that the network may choose from. Both know the facts by heart: only their eyes are compared.

**Doubt.** `photographs`: 200 that show no flag. `unanswerable`: 100 questions about held-out flags. An answer is
doubted below the threshold that the weights carry. Of two hops the second question alone is counted (`second hop`). The
calibration error is over all of these rows.
"""

import dataclasses
import functools
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from jaxtyping import Bool, Float, UInt8

from common.evaluation.evaluation import Evaluation, Output, provenance
from common.evaluation.score_table import markdown, percent_table
from common.io.images import contact_sheet, from_uint8, to_uint8
from recipes.countries import drawings, scenery, wordings
from recipes.countries.augmentation import blank_image, photograph
from recipes.countries.data import CountriesConfig
from recipes.countries.evaluation import matches
from recipes.countries.facts import RELATIONS, grid_colours
from recipes.countries.phrases import BY_FLAG, KIND_OF, QUESTIONS, item_id
from recipes.memory_evaluation import Scores
from reveal.assistant import BEAMS
from reveal.metrics.calibration import calibration_error, reliability
from reveal.metrics.retrieval import mrr, recall_at_k
from reveal.metrics.vqa import group_means
from reveal.network import weights as files
from reveal.network.generator import Decoding
from reveal.processing.doubt import Doubt
from reveal.processing.images import Views
from reveal.processing.processor import processor_of
from reveal.reader import Reader, ReaderOutput

SIDE = 240  # of a picture, in pixels
NEVER_SEEN = "country-flag-icons"
Picture = UInt8[np.ndarray, "h w 3"]


class Asked(NamedTuple):
    """Questions, the pictures that they show, what was answered and whether it was right."""

    subjects: Sequence[int]
    relations: Sequence[str]
    pictures: Sequence[int]
    output: ReaderOutput
    right: Bool[np.ndarray, " n"]


@dataclasses.dataclass(frozen=True)
class DrawnEvaluation(Evaluation):
    """The rows of the module's docstring; `data` is the world, `drawings` and `scenery` are folders."""

    data: CountriesConfig
    drawings: str = "data/flag_drawings"
    scenery: str = "data/flag_scenery"
    k: int = 4
    beams: int = BEAMS
    windows: Sequence[Sequence[float | int]] | None = None  # as in `Views`; None: those of the weights
    seed: int = 0

    def files(self) -> Sequence[str]:
        return ("drawn.json", "drawn.md", "drawn.png", "reliability.png")

    def evaluate(self, weights: str, output: Output) -> str:
        if find_spec("matplotlib") is None:
            raise ValueError('the reliability diagram needs matplotlib: pip install "film-plugins-reveal[notebook]"')
        file = files.file_of(weights)
        model, header = files.load_with_metadata(file)
        processor = processor_of(file, model.config, header)
        views = processor.views
        if self.windows is not None:
            views = dataclasses.replace(views, windows=tuple((float(s), int(n)) for s, n in self.windows))
        with tempfile.TemporaryDirectory() as folder:
            reader = Reader(model, read_item=self.data.read_item)
            reader.build(Path(folder) / "memory", self.data.memory_items(), self.data.sources)
            table, doubted = self.rows(reader, views, processor.doubt, output)
        text = percent_table(table) + "\n\n" + doubted["text"]
        output.write_json("drawn.json", provenance(weights) | {"k": self.k, "rows": table, "doubt": doubted["numbers"]})
        output.write_text("drawn.md", text)
        return text

    # ---- pictures

    def drawn(self, name: str, emoji: bool = False) -> list[Picture]:
        """Each held-out country's flag of a set, as a file shows it; an emoji in the middle of a white square."""
        found = drawings.load(self.drawings, name)
        return [as_file(found.pictures[c], float(found.aspects[c]), emoji) for c in self.data.atlas.held_out]

    def photographed(self, name: str, share: float) -> list[Picture]:
        """Each held-out country's flag of a set before a photograph, `share` of the picture wide."""
        found, pictures = drawings.load(self.drawings, name), []
        grounds = self.without_flag[: scenery.BACKGROUNDS]
        for number, country in enumerate(self.data.atlas.held_out.tolist()):
            rng = np.random.default_rng([self.seed, round(100 * share), country])
            flag, ground = (found.pictures[country], float(found.aspects[country])), grounds[7 * number % len(grounds)]
            pictures.append(to_uint8(photograph(*flag, ground, SIDE, rng, (share, share), 0.0, plain=True)))
        return pictures

    @functools.cached_property
    def without_flag(self) -> list[Picture]:
        return scenery.load(self.scenery, "test")

    # ---- questions

    def questions(self, texts: Mapping[str, Sequence[str]]) -> tuple[list[int], list[str], list[int], list[str]]:
        """Subjects, relations, indices of pictures and texts of all questions about held-out flags."""
        data, rows = self.data, []
        for index, country in enumerate(data.atlas.held_out.tolist()):
            for number, relation in enumerate(RELATIONS):
                if relation in BY_FLAG and data.askable[country, number]:
                    choices = texts[relation]
                    rows.append((country, relation, index, choices[(index + number) % len(choices)]))
        return tuple(map(list, zip(*rows, strict=True)))  # type: ignore[return-value]

    def ask(
        self,
        reader: Reader,
        texts: Sequence[str],
        pictures: Sequence[Picture | None],
        views: Views,
        k: int | None = None,
    ) -> ReaderOutput:
        """Asks each text about the best view of its picture; None: a question by name."""
        tokens, size = np.stack([self.data.question_tokens(text) for text in texts]), self.data.size
        blank = np.broadcast_to(blank_image(size), (views.count, size, size, 3))
        seen = (blank if one is None else views.of(one, size) for one in pictures)
        decoding = Decoding(self.data.answer_length, self.beams)
        image = reader.best_views(tokens, seen, views)
        return reader.ask(tokens, image, self.k if k is None else k, decoding=decoding)

    def about(
        self,
        reader: Reader,
        pictures: Sequence[Picture],
        views: Views,
        texts: Mapping[str, Sequence[str]] = QUESTIONS,
        k: int | None = None,
    ) -> Asked:
        subjects, relations, index, asked = self.questions(texts)
        output = self.ask(reader, asked, [pictures[number] for number in index], views, k)
        return Asked(subjects, relations, index, output, self.correct(output, subjects, relations))

    def correct(
        self, output: ReaderOutput, subjects: Sequence[int], relations: Sequence[str], facts: Any = None
    ) -> Bool[np.ndarray, " n"]:
        atlas = facts or self.data.atlas
        return matches(self.data, output, [atlas.answers(c, r) for c, r in zip(subjects, relations, strict=True)])

    # ---- rows

    def rows(
        self, reader: Reader, views: Views, doubt: Doubt | None, output: Output
    ) -> tuple[dict[str, Scores], dict[str, Any]]:
        bundled = self.drawn("flag-icons")
        shown = {
            "bundled": bundled,
            "another drawing": self.drawn(NEVER_SEEN),
            "emoji, Noto": self.drawn("noto", emoji=True),
            "emoji, OpenMoji": self.drawn("openmoji", emoji=True),
            "70 % of a photo": self.photographed("flag-icons", 0.7),
            "35 % of a photo": self.photographed("flag-icons", 0.35),
            "70 % of a photo, another drawing": self.photographed(NEVER_SEEN, 0.7),
            "35 % of a photo, another drawing": self.photographed(NEVER_SEEN, 0.35),
        }
        output.write_image("drawn.png", self.sheet(shown))
        answered = {name: self.about(reader, pictures, views) for name, pictures in shown.items()}
        answered["other wordings"] = self.about(reader, bundled, views, wordings.TEST_QUESTIONS)
        table = {name: self.scores(asked) for name, asked in answered.items()}
        for name, pictures in shown.items():
            table[name]["nearest pixels"] = self.nearest(answered[name], [[picture] for picture in pictures])
            every = [[*map(to_uint8, views.of(picture, SIDE))] if views.windows else [picture] for picture in pictures]
            table[name]["nearest pixels, in views"] = self.nearest(answered[name], every)
        second = self.second_hops(reader, bundled, views)
        table["two hops"] = self.scores(second, retrieved=False)
        table["no memory"] = self.scores(self.about(reader, bundled, Views(), k=0), retrieved=False)
        table |= self.edits(reader, bundled, views)
        measured = self.doubt(reader, {**answered, "second hop": second}, bundled, views, doubt, output)
        gone = self.data.memory_items(self.data.atlas.held_out)
        reader.delete([item.id for item in gone if item.id is not None])
        deleted = self.about(reader, bundled, views)
        table["deleted"] = self.scores(deleted, retrieved=False)
        if doubt is not None:
            probability = self.probability(doubt, deleted.output)
            table["deleted"]["doubted"] = float((probability < doubt.threshold).mean())
        return table, measured

    def scores(self, asked: Asked, retrieved: bool = True) -> Scores:
        means = group_means(asked.right.tolist(), [[relation] for relation in asked.relations])
        scores = {"accuracy": float(asked.right.mean())} | {name: means[name] for name in RELATIONS if name in means}
        if retrieved:
            gold = np.array([[item_id(c, KIND_OF[r])] for c, r in zip(asked.subjects, asked.relations, strict=True)])
            ids = asked.output.retrieved.ids
            scores |= {"recall_1": recall_at_k(ids, gold, 1), f"recall_{self.k}": recall_at_k(ids, gold, self.k)}
            scores["mrr"] = mrr(ids, gold)
        return scores

    def nearest(self, asked: Asked, pictures: Sequence[Sequence[Picture]]) -> float:
        """Accuracy of the facts of the country with the nearest flag by 16 x 12 pixels, in the best view."""
        stored = self.data.atlas.grid_colours[: self.data.atlas.real].reshape(self.data.atlas.real, -1)
        atlas, found = self.data.atlas, []
        for views in pictures:
            small = grid_colours(np.stack([cv2.resize(v, (192, 144), interpolation=cv2.INTER_AREA) for v in views]))
            distance = np.square(small.reshape(len(views), 1, -1) - stored).sum(-1)
            found.append(int(distance.min(0).argmin()))
        rows = zip(asked.subjects, asked.relations, asked.pictures, strict=True)
        said = [({*atlas.answers(found[index], what)[:1]}, {*atlas.answers(who, what)}) for who, what, index in rows]
        return float(np.mean([bool(one & right) for one, right in said]))

    def second_hops(self, reader: Reader, pictures: Sequence[Picture], views: Views) -> Asked:
        """Questions about the name that was answered about each flag."""
        data, held_out = self.data, self.data.atlas.held_out.tolist()
        names = self.ask(reader, [QUESTIONS["name"][0]] * len(pictures), pictures, views)
        names = [data.vocabulary.decode(tokens) for tokens in names.tokens]
        rows = [
            (country, relation, index, QUESTIONS[relation][0].format(names[index]))
            for number, relation in enumerate(RELATIONS)
            if relation not in BY_FLAG
            for index, country in enumerate(held_out)
            if data.askable[country, number]
        ]
        subjects, relations, index, texts = map(list, zip(*rows, strict=True))
        output = self.ask(reader, texts, [None] * len(rows), Views())
        return Asked(subjects, relations, index, output, self.correct(output, subjects, relations))

    def edits(self, reader: Reader, pictures: Sequence[Picture], views: Views) -> dict[str, Scores]:
        """Each held-out country gets another's capital, area or neighbour, in the wordings of `TEST_EDITS`."""
        data, atlas = self.data, self.data.atlas
        edited, rows = atlas.edited(self.seed), {}
        true = {item.id: item for item in data.memory_items(atlas.held_out)}
        for wording in range(3):
            items = []
            for country in atlas.held_out.tolist():
                facts = edited.countries[country].facts
                for relation, texts in wordings.TEST_EDITS.items():
                    number = int(item_id(country, KIND_OF[relation]))
                    if number in true and facts[relation]:
                        values = {"name": facts["name"][0], "region": atlas.answers(country, "region")[0]}
                        text = texts[wording].format(**values, value=facts[relation][0])
                        items.append(dataclasses.replace(true[number], fields={"text": text}))
            reader.edit(items)
            asked = self.about(reader, pictures, views)
            changed = [
                r in wordings.TEST_EDITS
                and bool(edited.answers(c, r))
                and set(edited.answers(c, r)).isdisjoint(atlas.answers(c, r))
                for c, r in zip(asked.subjects, asked.relations, strict=True)
            ]
            right = self.correct(asked.output, asked.subjects, asked.relations, edited)
            chosen, kinds = np.array(changed), np.array(asked.relations)
            row = {"accuracy": float(right[chosen].mean())}
            row |= {r: float(right[chosen & (kinds == r)].mean()) for r in wordings.TEST_EDITS}
            rows[f"edited, wording {wording + 1}"] = row | {"old facts": float(asked.right[chosen].mean())}
        reader.edit(list(true.values()))
        return rows

    def probability(self, doubt: Doubt, output: ReaderOutput) -> Float[np.ndarray, " n"]:
        """Of each answer; 0 for none at all."""
        silent = np.array([not self.data.vocabulary.decode(tokens) for tokens in output.tokens])
        return np.where(silent, 0, doubt.probability(output.signals()))

    def doubt(
        self,
        reader: Reader,
        answered: Mapping[str, Asked],
        bundled: Sequence[Picture],
        views: Views,
        doubt: Doubt | None,
        output: Output,
    ) -> dict[str, Any]:
        if doubt is None:
            return {"text": "The weights carry no calibration.", "numbers": {}}
        relations = [relation for relation in RELATIONS if relation in BY_FLAG]
        texts = [QUESTIONS[relations[n % len(relations)]][n // 5 % 4] for n in range(scenery.COUNT)]
        unrelated = self.ask(reader, texts, self.without_flag, views)
        texts = wordings.unanswerable_for_tests()
        unanswerable = self.ask(reader, texts, [bundled[n % len(bundled)] for n in range(len(texts))], views)
        probability = {name: self.probability(doubt, asked.output) for name, asked in answered.items()}
        right = {name: asked.right for name, asked in answered.items()}
        for name, found in (("photographs", unrelated), ("unanswerable", unanswerable)):
            probability[name], right[name] = self.probability(doubt, found), np.zeros(len(found.tokens), bool)
        p, r = (np.concatenate(list(parts.values())) for parts in (probability, right))
        rows, numbers, error = [], {}, calibration_error(p, r)
        for name, values in (probability | {"all": p}).items():
            doubted, chosen = values < doubt.threshold, (right | {"all": r})[name]
            lost = float(doubted[chosen].mean()) if chosen.any() else None
            numbers[name] = {"questions": len(values), "doubted": float(doubted.mean()), "right_doubted": lost}
            cells = [f"{100 * doubted.mean():.1f}", "" if lost is None else f"{100 * lost:.1f}"]
            rows.append([name, f"{len(values)}", *cells])
        numbers["all"] |= {"calibration_error": error, "threshold": doubt.threshold}
        with output.open("reliability.png") as path:
            plot(reliability(p, r), path)
        text = markdown(("row", "questions", "doubted", "of right answers"), rows, 1)
        return {"text": f"{text}\n\nCalibration error {error:.3f}, threshold {doubt.threshold:.3f}", "numbers": numbers}

    def sheet(self, shown: Mapping[str, Sequence[Picture]]) -> Float[np.ndarray, "h w 3"]:
        chosen = [picture for pictures in shown.values() for picture in pictures[::6][:8]]
        squares = (on_white(picture, max(picture.shape[:2])) for picture in chosen)
        cells = [from_uint8(cv2.resize(square, (120, 120), interpolation=cv2.INTER_AREA)) for square in squares]
        return contact_sheet(cells, columns=8)


def as_file(drawing: UInt8[np.ndarray, "72 96 4"], aspect: float, emoji: bool) -> Picture:
    """A drawing in its own proportions on white; an emoji is in the middle of a square."""
    high = max(8, round(SIDE / aspect))
    scaled = cv2.resize(drawing, (SIDE, high), interpolation=cv2.INTER_LINEAR).astype(np.float32)
    alpha = scaled[..., 3:] / 255
    picture = np.rint(scaled[..., :3] * alpha + 255 * (1 - alpha)).astype(np.uint8)
    return on_white(picture, max(round(1.06 * SIDE), high)) if emoji else picture


def on_white(picture: Picture, side: int) -> Picture:
    """The picture in the middle of a square."""
    (high, wide), square = picture.shape[:2], np.full((side, side, 3), 255, np.uint8)
    top, left = (side - high) // 2, (side - wide) // 2
    square[top : top + high, left : left + wide] = picture
    return square


def plot(groups: Sequence[tuple[float, float, int]], path: Path) -> None:
    """The reliability diagram of `reveal.metrics.calibration.reliability`, a PNG."""
    from matplotlib.figure import Figure

    figure = Figure((4, 4), layout="constrained")
    axis = figure.subplots()
    axis.plot([0, 1], [0, 1], ":", color="0.5", label="calibrated")
    axis.plot(*zip(*[(probability, right) for probability, right, _ in groups], strict=True), "o-", label="countries")
    axis.set(xlabel="probability of being right", ylabel="share of right answers", xlim=(0, 1), ylim=(0, 1), aspect=1)
    axis.grid(alpha=0.3)
    axis.legend(loc="upper left")
    figure.savefig(path, format="png", dpi=110)
