"""VQA accuracy: the agreement of a prediction with ten annotators (VQA-v2 and OK-VQA).

    vqa_accuracy("two", ["2"] * 3 + ["3"] * 7)      # 0.9

Antol et al., "VQA: Visual Question Answering" (2015): an answer is correct if three annotators of ten gave it, and
partly so if fewer did. Each annotator is left out once, the prediction is compared with the other nine, min(1, matches
/ 3), and the mean is taken. Accuracies are shares; papers print 100 times these.

| annotators who agree | 0 | 1 | 2 | 3 | 4 or more |
| --- | --- | --- | --- | --- | --- |
| "current", "older" | 0 | 0.3 | 0.6 | 0.9 | 1 |
| "short": min(1, n / 3) without leaving out | 0 | 0.333 | 0.667 | 1 | 1 |

**Evaluators.** The numbers in papers come from three; state which one yours come from.

- "current": the public evaluator (GT-Vision-Lab/VQA) as it stands. Both sides are stripped. Then **only if the ten
  answers differ**, both sides are normalised. So "Yes" or "two" against ten times "yes" or "2" score 0: its authors
  wanted text that is read off the image to be left alone (issue 14 there).
- "older": the same evaluator before that. The prediction is always normalised; of the answers only the punctuation, and
  only if they differ. A true answer with an article or a capital letter can then never match.
- "short": everything is always normalised, and nobody is left out. Used by many training codes; the most generous.

**Normalising**, in this order: punctuation (`strip_punctuation`), lower case, number words none to ten into digits,
articles dropped, apostrophes restored (`CONTRACTIONS`).

**Entries are annotators**: equal answers of two are two entries, compared by position. (The public code compares
entries as dictionaries, so annotations without their `answer_id` lose all equal ones when one is left out.)

**OK-VQA** (Marino et al., 2019) has five annotators, each counted twice. Its `answer` is stemmed ("surf") and
`raw_answer` is as typed ("surfing"). The benchmark scores `answer`, so predictions have to be stemmed in the same way.
"""

import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

Evaluator = Literal["current", "older", "short"]

ENOUGH = 3  # annotators who agree
ANNOTATORS = 10
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
# Each form without one of its apostrophes -> the form. The first entry, which removes an apostrophe, is the evaluator's
# own; forms with a capital I never match, because words are in lower case by then. Two entries that change nothing
# ("let's", "she's") are left out.
CONTRACTIONS = {"somebody'd": "somebodyd"} | {
    form[:i] + form[i + 1 :]: form for form in _FORMS.split() for i, letter in enumerate(form) if letter == "'"
}


def vqa_accuracy(prediction: str, answers: Sequence[str], evaluator: Evaluator = "current") -> float:
    """Accuracy of a prediction, in [0, 1]. Raises ValueError for an unknown evaluator or too few answers to reach 1."""
    if evaluator not in get_args(Evaluator):
        raise ValueError(f"evaluator={evaluator!r}: choose {', '.join(get_args(Evaluator))}")
    least = ENOUGH + (evaluator != "short")
    if isinstance(answers, str) or len(answers) < least:
        raise ValueError(f"answers={answers!r}: reaching 1 takes a list of {least} or more, usually {ANNOTATORS}")
    prediction, answers = _normalised(prediction, answers, evaluator)
    matches = [answer == prediction for answer in answers]
    if evaluator == "short":
        return min(1.0, sum(matches) / ENOUGH)
    return sum(min(1.0, (sum(matches) - left_out) / ENOUGH) for left_out in matches) / len(matches)


def ten_answers(answers: Sequence[str]) -> list[str]:
    """One answer per annotator; the five of OK-VQA are counted twice each."""
    return [answer for answer in answers for _ in range(2)] if 2 * len(answers) == ANNOTATORS else list(answers)


def group_means(values: Iterable[float | bool], groups: Iterable[Iterable[str]]) -> dict[str, float]:
    """The mean over the values of each group, such as types of answers; a value may belong to several."""
    members: dict[str, list[float | bool]] = {}
    for value, names in zip(values, groups, strict=True):
        for name in names:
            members.setdefault(name, []).append(value)
    return {name: statistics.fmean(group) for name, group in members.items()}


def normalise(text: str) -> str:
    """A text as the evaluator compares it, unless all answers are the same."""
    return digits_and_articles(strip_punctuation(trim(text)))


def trim(text: str) -> str:
    return text.replace("\n", " ").replace("\t", " ").strip()


def strip_punctuation(text: str) -> str:
    """Each mark is removed if a space touches it anywhere in the text, or if a comma is between digits anywhere
    (whichever mark it is), else replaced by a space. A full stop is removed unless a digit follows."""
    number, stripped = re.search(r"\d,\d", text), text
    for mark in PUNCTUATION:
        touched = f"{mark} " in text or f" {mark}" in text
        stripped = stripped.replace(mark, "" if touched or number else " ")
    return re.sub(r"\.(?!\d)", "", stripped, count=PERIODS)


def digits_and_articles(text: str) -> str:
    """Lower case, digits for number words, no articles, apostrophes restored, single spaces."""
    words = [NUMBERS.get(word, word) for word in text.lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


def _normalised(prediction: str, answers: Sequence[str], evaluator: str) -> tuple[str, list[str]]:
    if evaluator == "older":
        differ = len(set(answers)) > 1
        return normalise(prediction), [strip_punctuation(answer) if differ else answer for answer in answers]
    trimmed = [trim(answer) for answer in answers]
    if evaluator == "current" and len(set(trimmed)) == 1:
        return trim(prediction), trimmed
    return normalise(prediction), [normalise(answer) for answer in answers]
