"""A-OKVQA: one question, two tasks (Schwenk et al., "A-OKVQA", ECCV 2022; rules of its eval_predictions.py).

    aokvqa.direct_answer(questions, {"a": "dog", "b": "red"})
    aokvqa.multiple_choice(questions, aokvqa.to_choices(questions, {"a": "a dog", "b": "red"}))

`questions` is the list in the benchmark's JSON file; `predictions` maps question_id to text. Scores are shares; papers
print 100 times these.

| | direct answer | multiple choice |
| --- | --- | --- |
| correct | min(1, n / 3) for n of the ten `direct_answers` equal to the prediction | equal to the correct choice |
| questions marked `difficult_direct_answer` | left out | counted |
| no prediction | 0, or an error if `strict` | 0, or an error if `strict` |
| a prediction that is no choice | | wrong, or an error if `strict` |

Strings are compared without any normalising, and no annotator is left out, unlike in `vqa`. An earlier version of the
official script left the difficult questions out of the wrong task; its numbers cannot be compared with these.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from reveal.metrics.vqa import ENOUGH

Question = Mapping[str, Any]
Similarity = Callable[[str, str], float]  # of prediction and choice


def direct_answer(questions: Sequence[Question], predictions: Mapping[str, str], strict: bool = True) -> float:
    """Mean accuracy of free answers. Raises ValueError as the module docstring says, and without questions."""
    easy = [question for question in questions if not question["difficult_direct_answer"]]
    _check(predictions, easy, strict)
    matches = [question["direct_answers"].count(predictions.get(question["question_id"])) for question in easy]
    return sum(min(1.0, count / ENOUGH) for count in matches) / len(easy)


def multiple_choice(questions: Sequence[Question], predictions: Mapping[str, str], strict: bool = True) -> float:
    _check(predictions, questions, strict)
    correct = 0
    for question in questions:
        prediction, choices = predictions.get(question["question_id"]), question["choices"]
        if strict and prediction not in choices:
            raise ValueError(f"{prediction!r} is none of {choices}: use to_choices, or strict=False to count it 0")
        correct += prediction == choices[question["correct_choice_idx"]]
    return correct / len(questions)


def word_overlap(prediction: str, choice: str) -> float:
    """Jaccard similarity of the sets of words, in lower case."""
    a, b = (set(re.findall(r"\w+", text.lower())) for text in (prediction, choice))
    return len(a & b) / len(a | b) if a | b else 0.0


def to_choices(
    questions: Sequence[Question], predictions: Mapping[str, str], similarity: Similarity = word_overlap
) -> dict[str, str]:
    """Maps each prediction to the most similar choice of its question, the first of equally similar ones.

    The official helper uses the cosine of averaged GloVe vectors (6B, 300 dimensions) as `similarity`; pass such a
    function for the official number. `word_overlap` differs: it does not see that "motorbike" is near "motorcycle", and
    a prediction that shares no word with any choice gets the first one, correct by chance.

    Raises ValueError for a prediction to an unknown question."""
    choices = {question["question_id"]: question["choices"] for question in questions}
    if unknown := [question for question in predictions if question not in choices]:
        raise ValueError(f"predictions for unknown questions, {unknown[0]!r} for one: give all the questions asked")
    return {
        question: text if text in choices[question] else max(choices[question], key=partial(similarity, text))
        for question, text in predictions.items()
    }


def _check(predictions: Mapping[str, str], questions: Sequence[Question], strict: bool) -> None:
    """Raises ValueError without questions, for a repeated question and, if `strict`, for a missing prediction."""
    ids = [question["question_id"] for question in questions]
    if not ids or len(set(ids)) < len(ids):
        raise ValueError(f"{len(ids)} questions with {len(set(ids))} ids: give at least one, each id once")
    missing = [number for number in ids if number not in predictions]
    if strict and missing:
        some = ", ".join(map(repr, missing[:3]))
        raise ValueError(f"{len(missing)} questions have no prediction ({some}): add them, or count 0 by strict=False")
