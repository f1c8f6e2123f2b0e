"""Encyclopedic-VQA: exact match and lists (Mensink et al., ICCV 2023; rules of its evaluation_utils.py).

    evqa.exact_match("Two", ["2", "a pair"], "templated")                                   # True
    evqa.exact_match("fish, seeds and moss", ["Seeds && fish && worms"], "multi_answer")     # True: 2 of 4

An answer is correct if it is one of the references, both normalised. Answers to `multi_answer` questions are compared
as sets: correct if their intersection over union is at least a half. `&&` separates the parts of a reference; commas,
" and " and " & " those of a prediction, so a name with a comma in it is two.

**Normalising**, in this order: lower case; punctuation removed, without a space in its place ("t-shirt" becomes
"tshirt"); "the answer is", a, an, the removed; none to ten into digits, true and entailment into "yes", false and
contradiction into "no"; apostrophes restored where missing ("dont" and "don't" are the same).

**Without BEM.** The published score asks a BERT network (Bulian et al., EMNLP 2022, from TensorFlow Hub) whether an
answer is equivalent, wherever exact match says no, lists too. It is not part of this project, so these numbers are
never above the published kind: report them as "exact match", and compare them with exact match only.
"""

import re
import string
from collections.abc import Sequence

from reveal.metrics.vqa import CONTRACTIONS, NUMBERS

KINDS = ("templated", "automatic", "multi_answer", "2_hop")
LISTS = "multi_answer"
MIN_IOU = 0.5
WORDS = NUMBERS | dict.fromkeys(("entailment", "true"), "yes") | dict.fromkeys(("contradiction", "false"), "no")
_SPAN = "<extra_id_0> "  # T5 generates it first
_PUNCTUATION = str.maketrans("", "", string.punctuation + "\u2018\u2019\u00b4")
_IGNORED = re.compile(r"\b(?:the answer is|a|an|the)\b")


def exact_match(prediction: str, references: Sequence[str], kind: str) -> bool:
    """Whether a prediction matches one of the references; `kind` is the question's, one of KINDS. Raises ValueError for
    another kind, and unless all references can be matched (`says_something`)."""
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}: choose one of {', '.join(KINDS)}")
    empty = [reference for reference in references if not says_something(reference)]
    if isinstance(references, str) or not references or empty:
        raise ValueError(f"references={references!r}: give a list of answers of which normalising leaves something")
    if kind == LISTS:
        return any(list_match(prediction, reference) for reference in references)
    return normalise(prediction) in map(normalise, references)


def list_match(prediction: str, reference: str) -> bool:
    """Whether the intersection over union of two lists is `MIN_IOU` or more."""
    wanted = _parts(reference.split("&&"))
    predicted = _parts(prediction.replace(" and ", ",").replace(" & ", ",").split(","))
    return len(wanted & predicted) / len(wanted | predicted) >= MIN_IOU


def says_something(reference: str) -> bool:
    """Whether anything of a reference is left after normalising; nothing is of "The" and "..."."""
    return bool(_parts(reference.split("&&")))


def normalise(text: str) -> str:
    text = text.lower().replace("\n", " ").replace("\t", " ").strip()
    text = text.replace(_SPAN, "") if text.startswith(_SPAN) else text
    words = [WORDS.get(word, word) for word in _IGNORED.sub(" ", text.translate(_PUNCTUATION)).split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words)


def _parts(texts: Sequence[str]) -> set[str]:
    return {part for part in map(normalise, texts) if part}
