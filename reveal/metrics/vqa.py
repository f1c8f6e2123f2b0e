"""VQA accuracy: the agreement of a prediction with ten people (VQA-v2 and OK-VQA).

    vqa_accuracy("two", ["2"] * 3 + ["3"] * 7)      # 0.9

Antol et al., "VQA: Visual Question Answering" (2015): an answer is right if three people of ten gave it, and partly so
if fewer did. To make people and machines comparable, each of the ten is left out once and the prediction compared with
the other nine, min(1, matches / 3), and the mean taken. Accuracies here are shares; papers print 100 times these.

| people who agree | 0 | 1 | 2 | 3 | 4 or more |
| --- | --- | --- | --- | --- | --- |
| "current", "older" | 0 | 0.3 | 0.6 | 0.9 | 1 |
| "short": min(1, n / 3) without leaving out | 0 | 0.333 | 0.667 | 1 | 1 |

**Evaluators.** The numbers in papers come from three; say which one yours come from.

- "current": the public evaluator (GT-Vision-Lab/VQA) as it stands. Both sides are stripped. Then **only if the ten
  answers are not all the same**, both sides are normalised. So "Yes" or "two" against ten times "yes" or "2" score 0:
  its authors wanted text that is read off the image to be left alone (issue 14 there).
- "older": the same evaluator before that. The prediction is always normalised; of the answers only the punctuation, and
  only if they differ. A true answer with an article or a capital letter can then be matched by nothing.
- "short": everything is normalised always, and nobody is left out. Used by many training codes; the most generous.

**Normalising**, in this order: punctuation (`strip_punctuation`), small letters, number words none to ten into digits,
articles dropped, apostrophes restored (`CONTRACTIONS`).

**Entries are people.** Equal answers of two people are two entries. The public code compares entries as dictionaries,
so annotations without their `answer_id` lose all equal entries at once when one is left out; here places are compared.

**OK-VQA** (Marino et al., 2019) has five people, each counted twice: one who agrees gives 0.6, two give 1. Its `answer`
is stemmed ("surf") and `raw_answer` is as typed ("surfing"). The benchmark scores `answer`, so predictions have to be
stemmed in the same way; with which stemmer moves the score, so say that too.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

Evaluator = Literal["current", "older", "short"]

ENOUGH = 3  # people who agree
PEOPLE = 10
ARTICLES = frozenset(["a", "an", "the"])
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMBERS = {"none": "0"} | {word: str(number) for number, word in enumerate(_DIGITS)}
PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'  # neither apostrophe nor colon
PERIODS = 32  # at most so many are dropped: the evaluator passes re.UNICODE, which is 32, where a count belongs

_FORMS = """
ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd he'd've
he's how'd how'll how's I'd've I'm I've isn't it'd it'd've it'll ma'am mightn't mightn't've might've mustn't must've
needn't not've o'clock oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've somebody'll
somebody's someone'd someone'd've someone'll someone's something'd something'd've something'll that's there'd
there'd've there're there's they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll
what're what's what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't
would've wouldn't wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're you've
"""


# Each form without one of its apostrophes -> the form. The first entry, which takes an apostrophe away, is the evaluator's
# own; forms with a capital I are never met, because words are in small letters by then. Two entries that change nothing
# ("let's", "she's") are left out.
CONTRACTIONS = {"somebody'd": "somebodyd"} | {
    form[:i] + form[i + 1 :]: form for form in _FORMS.split() for i, letter in enumerate(form) if letter == "'"
}


class VqaScores(NamedTuple):
    """Accuracies of a set, as shares; those by type are empty if the annotations name no types."""

    accuracy: float
    each: dict[Hashable, float]
    by_question_type: dict[str, float]
    by_answer_type: dict[str, float]


def vqa_accuracy(prediction: str, answers: Sequence[str], evaluator: Evaluator = "current") -> float:
    """Of one question, in [0, 1]. Raises ValueError for an unknown evaluator and for answers too few to reach 1."""
    if evaluator not in get_args(Evaluator):
        raise ValueError(f"evaluator={evaluator!r}: choose {', '.join(get_args(Evaluator))}")
    least = ENOUGH + (evaluator != "short")
    if isinstance(answers, str) or len(answers) < least:
        raise ValueError(f"answers={answers!r}: reaching 1 takes a list of {least} or more, usually {PEOPLE}")
    prediction, answers = _compared(prediction, answers, evaluator)
    matches = [answer == prediction for answer in answers]
    if evaluator == "short":
        return min(1.0, sum(matches) / ENOUGH)
    return sum(min(1.0, (sum(matches) - left_out) / ENOUGH) for left_out in matches) / len(matches)


def vqa_scores(
    predictions: Mapping[Any, str],
    annotations: Iterable[Mapping[str, Any]],
    evaluator: Evaluator = "current",
    field: Literal["answer", "raw_answer"] = "answer",
    strict: bool = True,
) -> VqaScores:
    """Of a set: question_id -> prediction, and the `annotations` of a VQA or OK-VQA file.

    A question without a prediction raises ValueError, or scores 0 if not `strict`."""
    annotations = list(annotations)
    check_complete(predictions, [annotation["question_id"] for annotation in annotations], strict)
    each: dict[Hashable, float] = {}
    types: dict[str, dict[str, list[float]]] = {"question_type": defaultdict(list), "answer_type": defaultdict(list)}
    for annotation in annotations:
        question, answers = annotation["question_id"], ten_answers(annotation, field)
        each[question] = vqa_accuracy(predictions[question], answers, evaluator) if question in predictions else 0.0
        for key in types.keys() & annotation.keys():
            types[key][annotation[key]].append(each[question])
    by_type = ({name: statistics.fmean(group) for name, group in groups.items()} for groups in types.values())
    return VqaScores(statistics.fmean(each.values()), each, *by_type)


def ten_answers(annotation: Mapping[str, Any], field: Literal["answer", "raw_answer"] = "answer") -> list[str]:
    """The answers of an annotation, one for each person; five (OK-VQA) are counted twice each."""
    entries = annotation["answers"]
    if any(field not in entry for entry in entries):
        question = annotation.get("question_id")
        raise ValueError(f"answers of question {question!r} have no {field!r}; only OK-VQA's have both: use 'answer'")
    answers = [entry[field] for entry in entries]
    return [answer for answer in answers for _ in range(2)] if 2 * len(answers) == PEOPLE else answers


def check_complete(predictions: Mapping[Any, str], questions: Sequence[Hashable], strict: bool) -> None:
    """Raises ValueError without questions, for a question asked twice and, if `strict`, without a prediction."""
    if not questions or len(set(questions)) < len(questions):
        raise ValueError(f"{len(questions)} questions with {len(set(questions))} ids: give at least one, each id once")
    missing = [question for question in questions if question not in predictions]
    if strict and missing:
        some = ", ".join(map(repr, missing[:3]))
        raise ValueError(f"{len(missing)} questions have no prediction ({some}): add them, or count 0 by strict=False")


def normalise(text: str) -> str:
    """What the evaluator compares, unless all answers are the same."""
    return digits_and_articles(strip_punctuation(trim(text)))


def trim(text: str) -> str:
    return text.replace("\n", " ").replace("\t", " ").strip()


def strip_punctuation(text: str) -> str:
    """Each mark becomes nothing if a space touches it anywhere in the text, or if a comma stands between digits
    anywhere (whichever mark it is), else a space. A full stop becomes nothing unless a digit follows."""
    number, stripped = re.search(r"\d,\d", text), text
    for mark in PUNCTUATION:
        touched = f"{mark} " in text or f" {mark}" in text
        stripped = stripped.replace(mark, "" if touched or number else " ")
    return re.sub(r"\.(?!\d)", "", stripped, count=PERIODS)


def digits_and_articles(text: str) -> str:
    """Small letters, digits for number words, no articles, apostrophes restored, single spaces."""
    words = [NUMBERS.get(word, word) for word in text.lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


def _compared(prediction: str, answers: Sequence[str], evaluator: Evaluator) -> tuple[str, list[str]]:
    """Both sides as the evaluator compares them."""
    if evaluator == "older":
        differ = len(set(answers)) > 1
        return normalise(prediction), [strip_punctuation(answer) if differ else answer for answer in answers]
    trimmed = [trim(answer) for answer in answers]
    if evaluator == "current" and len(set(trimmed)) == 1:
        return trim(prediction), trimmed
    return normalise(prediction), [normalise(answer) for answer in answers]
