"""Forgetting: whether answers betray that a deleted item was once in the memory, or was trained on.

    python eval.py experiment=countries_joint evaluation=countries_forgetting weights=reveal/weights/countries

To unlearn a fact, REVEAL deletes its items; the network stays as it is. The test is membership inference (Shokri et
al., 1610.05820): whoever asks questions has to tell subjects whose items were deleted from those that were never there.

| group | asked about in training | items |
| --- | --- | --- |
| held out (half of them) | no | in the memory, then deleted |
| training (half) | yes | in the memory, then deleted |
| never seen (the other held-out ones) | no | never in the memory |

Each group is asked the same questions before and after the deletion, and three attackers decide by one number per
question, the larger the more likely a member: `text`, 1 for a right answer; `right answer`, its log-probability per
token; `own answer`, that of the network's answer. Their score is the area under the ROC curve against the never seen
ones: .5 is guessing. Standard errors are of a bootstrap over countries, whose questions are alike.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.stats
from jaxtyping import Float, Int

from common.evaluation.evaluation import Output
from common.evaluation.score_table import markdown
from recipes.countries.evaluation import CountriesEvaluation
from recipes.countries.facts import RELATIONS
from recipes.memory_evaluation import Scores, select
from recipes.questions import Example
from reveal.memory.items import Item
from reveal.reader import Reader

ATTACKS = ("text", "right answer", "own answer")
SPLIT = 0x666F7267  # seeds the halves


@dataclasses.dataclass(frozen=True)
class Observations:
    """What an attacker sees of a group: for each question its country, and the numbers of `ATTACKS`."""

    countries: Int[np.ndarray, " n"]
    numbers: Float[np.ndarray, "a n"]

    def resampled(self, rng: np.random.Generator) -> "Observations":
        """The questions about as many countries, drawn with repetition."""
        known = np.unique(self.countries)
        rows = np.concatenate([np.flatnonzero(self.countries == one) for one in rng.choice(known, len(known))])
        return dataclasses.replace(self, countries=self.countries[rows], numbers=self.numbers[:, rows])


@dataclasses.dataclass(frozen=True)
class ForgettingEvaluation(CountriesEvaluation):
    """The table of the module's docstring."""

    resamples: int = 200  # of the bootstrap

    def files(self) -> Sequence[str]:
        return ("results.json", "results.md")

    def illustrate(self, reader: Reader, output: Output) -> None:
        """No pictures."""

    def groups(self) -> dict[str, Int[np.ndarray, " n"]]:
        rng = np.random.default_rng([SPLIT, self.seed])
        held_out, never = np.array_split(rng.permutation(self.data.atlas.held_out), 2)
        training, _ = np.array_split(rng.permutation(self.data.splits["train"]), 2)
        return {"held out": held_out, "training": training, "never seen": never}

    def items(self) -> list[Item]:
        """None is about the countries never seen."""
        return self.data.memory_items(np.setdiff1d(np.arange(self.data.atlas.real), self.groups()["never seen"]))

    def rows(self, reader: Reader) -> dict[str, Scores]:
        groups, rows = self.groups(), {}
        asked = {name: self.questions(name, countries) for name, countries in groups.items()}
        for state in ("in the memory", "deleted"):
            if state == "deleted":
                about = np.concatenate([groups["held out"], groups["training"]])
                reader.delete([item.id for item in self.data.memory_items(about) if item.id is not None])
            seen = {name: self.observe(reader, questions) for name, questions in asked.items()}
            for name in ("held out", "training"):
                rows[f"{name}, {state}"] = self.attacked(seen[name], seen["never seen"])
        return rows

    def questions(self, group: str, countries: Int[np.ndarray, " n"]) -> Example:
        questions = self.data.evaluation("train" if group == "training" else "held_out", self.renderings)
        return select(questions, np.isin(questions["id"] // len(RELATIONS), countries))

    def observe(self, reader: Reader, questions: Example) -> Observations:
        output = self.answer(reader, questions)
        scored = self.answer(reader, questions, answers=questions["answer"])
        numbers = np.stack([self.correct(output, questions), scored.likelihood, output.likelihood])
        return Observations(questions["id"] // len(RELATIONS), numbers)

    def attacked(self, members: Observations, others: Observations) -> Scores:
        """Right answers of both groups, and of each attack the area under the curve with its error."""
        rng = np.random.default_rng(self.seed)
        areas = np.array([area(a, b) for a, b in zip(members.numbers, others.numbers, strict=True)])
        drawn = [(members.resampled(rng).numbers, others.resampled(rng).numbers) for _ in range(self.resamples)]
        errors = np.std([[area(a, b) for a, b in zip(*pair, strict=True)] for pair in drawn], axis=0)
        scores = {"right": float(members.numbers[0].mean()), "right_never": float(others.numbers[0].mean())}
        for name, value, error in zip(ATTACKS, areas.tolist(), errors.tolist(), strict=True):
            scores |= {f"auc_{name}": value, f"auc_{name}_error": error}
        return scores

    def table(self, rows: Mapping[str, Scores]) -> str:
        titles = ["group", "right answers, %", "of never seen, %", *(f"AUC, {name}" for name in ATTACKS)]
        lines = []
        for name, scores in rows.items():
            shares = [f"{100 * scores[key]:.1f}" for key in ("right", "right_never")]
            areas = [f"{scores[f'auc_{attack}']:.2f} ± {scores[f'auc_{attack}_error']:.2f}" for attack in ATTACKS]
            lines.append([name, *shares, *areas])
        return markdown(titles, lines)


def area(members: Float[np.ndarray, " n"], others: Float[np.ndarray, " m"]) -> float:
    """Area under the ROC curve: how often a member's number is the larger one; of equal ones, half."""
    ranks = scipy.stats.rankdata(np.concatenate([members, others]))[: len(members)]
    return float((ranks.sum() - len(members) * (len(members) + 1) / 2) / (len(members) * len(others)))
