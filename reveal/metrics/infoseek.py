"""InfoSeek: exact match, numbers within a range, one score of two splits (Chen et al., EMNLP 2023; infoseek_eval.py).

    infoseek.exact_match("The Alps", ["alps", "alpine arc"])          # True
    infoseek.relaxed("about 60 m", (54.9, 67.1))                      # True
    infoseek.scores(correct, splits, kinds).score                     # harmonic mean of the two splits

| kind of question | correct if |
| --- | --- |
| string, time | it is one of the answers, after lower case, no punctuation, no a, an, the, single spaces |
| numerical, one number predicted | it is in the range of the answer, ends included |
| numerical, a range predicted | it is within the answer's, or intersection over union of the two is 0.5 or more |

The published answers list all accepted forms of dates, so years have no other rule. A range is 10 % around Wikidata's
number.

**Numbers in a text** are parsed as the evaluator does: the first two count; if the second is the smaller one, only the
first; thousands may have commas; a hyphen after a digit separates; ".5" is 5, for full stops at either end are dropped;
and a text without any number is the range 0 to 0, which is correct where 0 is.

**The score** is the harmonic mean of the accuracies of `unseen_question` and `unseen_entity` questions; it is None
where one of the two has no question. An accuracy of 0 counts as 1e-14, so the score is then about 0. All are shares;
papers print 100 times these, and round before the mean is taken.
"""

import re
import string
from collections.abc import Sequence
from typing import NamedTuple

from reveal.metrics.vqa import group_means

SPLITS = ("unseen_question", "unseen_entity")
MIN_IOU = 0.5
TINY = 1e-12
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:an?|the)\b")
_NUMBER = re.compile(r"[-+]?\.?\d+(?:,\d{3})*\.?\d*(?:[eE][-+]?\d+)?")

Span = tuple[float, float]


class InfoSeekScores(NamedTuple):
    score: float | None  # the harmonic mean; None: one of the splits is missing
    accuracy: float  # of all questions
    by_split: dict[str, float]
    by_kind: dict[str, float]


def exact_match(prediction: str, references: Sequence[str]) -> bool:
    """Whether a prediction is one of the answers. Raises ValueError without answers."""
    if isinstance(references, str) or not references:
        raise ValueError(f"references={references!r}: give a list of at least one answer")
    return normalise(prediction) in set(map(normalise, references))


def relaxed(prediction: str, span: Span) -> bool:
    """Whether the predicted number or range agrees with the answer's range. Raises ValueError for a reversed one."""
    least, most = span
    if least > most:
        raise ValueError(f"span={span} ends before it begins: give the smaller number first")
    first, last = numbers(prediction)
    if least <= first <= most and least <= last <= most:
        return True
    return last > first and overlap((first, last), span) >= MIN_IOU - TINY


def numbers(text: str) -> Span:
    text = re.sub(r"(?<=\d)-", " - ", text)
    first, *rest = [_value(number) for number in _NUMBER.findall(text)[:2]] or [0.0]
    return (first, rest[0]) if rest and first <= rest[0] else (first, first)


def overlap(one: Span, other: Span) -> float:
    """Intersection over union of two ranges."""
    common = max(0.0, min(one[1], other[1]) - max(one[0], other[0]))
    lengths = one[1] - one[0] + TINY, other[1] - other[0] + TINY  # as the evaluator rounds: 0.5 is a border
    return common / (sum(lengths) - common)


def scores(correct: Sequence[bool], splits: Sequence[str], kinds: Sequence[str]) -> InfoSeekScores:
    """From each answer's correctness, split and kind. Raises ValueError unless each answer has all three."""
    if not correct or not len(correct) == len(splits) == len(kinds):
        counts = f"{len(correct)} questions, {len(splits)} splits and {len(kinds)} kinds"
        raise ValueError(f"{counts}: give one of each, and at least one question")
    by_split, by_kind = (group_means(correct, [[name] for name in names]) for names in (splits, kinds))
    both = [by_split[split] for split in SPLITS if split in by_split]
    score = len(both) / sum(1 / (value or TINY / 100) for value in both) if len(both) == len(SPLITS) else None
    return InfoSeekScores(score, sum(correct) / len(correct), by_split, by_kind)


def normalise(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _value(number: str) -> float:
    number = number.replace(",", "").strip(".")
    if number.count(".") > 1:  # "-.5.2", which the evaluator fails at; ".5.2" is 5.2
        number = number[0] + number[2:]
    return float(number)
