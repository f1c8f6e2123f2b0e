"""Encyclopedic-VQA: exact match and lists (Mensink et al., ICCV 2023; rules of its evaluation_utils.py).

    evqa.exact_match("Two", ["2", "a pair"], "templated")                                   # True
    evqa.exact_match("fish, seeds and moss", ["Seeds && fish && worms"], "multi_answer")     # True: 2 of 4

An answer is right if it is one of the references, both normalised. Of `multi_answer` questions the parts are compared
as sets: right if what both name is at least half of what either names. `&&` divides the parts of a reference; commas,
" and " and " & " those of a prediction, so a name with a comma in it is two.

**Normalising**, in this order: small letters; all punctuation goes, without a space in its place ("t-shirt" becomes
"tshirt"); "the answer is", a, an, the; none to ten into digits, true and entailment into "yes", false and
contradiction into "no"; apostrophes restored, where none was written ("dont" and "don't" are the same).

**Not here: BEM.** The published score asks a BERT network (Bulian et al., EMNLP 2022, from TensorFlow Hub) whether an
answer means the same, wherever exact match says no, lists too. It is no part of this project, so these numbers are
below the published kind of number, never above: say "exact match" with them, and compare them with exact match only.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

from reveal.metrics.vqa import CONTRACTIONS, NUMBERS

KINDS = ("templated", "automatic", "multi_answer", "2_hop")
LISTS = "multi_answer"
ENOUGH = 0.5  # of intersection over union
WORDS = NUMBERS | dict.fromkeys(("entailment", "true"), "yes") | dict.fromkeys(("contradiction", "false"), "no")
_SPAN = "<extra_id_0> "  # T5 writes it in front
_PUNCTUATION = str.maketrans("", "", string.punctuation + "\u2018\u2019\u00b4")
_NOTHING = re.compile(r"\b(?:the answer is|a|an|the)\b")


def exact_match(prediction: str, references: Sequence[str], kind: str) -> bool:
    """Whether a prediction is right by one of the references; `kind` is the question's, one of KINDS.

    Raises ValueError for another kind, without references, and for one of which normalising leaves nothing
    (`says_something`)."""
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}: choose one of {', '.join(KINDS)}")
    empty = [reference for reference in references if not says_something(reference)]
    if isinstance(references, str) or not references or empty:
        raise ValueError(f"references={references!r}: give a list of answers of which normalising leaves something")
    if kind == LISTS:
        return any(list_match(prediction, reference) for reference in references)
    return normalise(prediction) in map(normalise, references)


def list_match(prediction: str, reference: str) -> bool:
    """Whether a list is right: intersection over union of 0.5 or more."""
    wanted = _parts(reference.split("&&"))
    named = _parts(prediction.replace(" and ", ",").replace(" & ", ",").split(","))
    return len(wanted & named) / len(wanted | named) >= ENOUGH


def says_something(reference: str) -> bool:
    """Whether a reference can be matched at all: "The" and "..." cannot."""
    return bool(_parts(reference.split("&&")))


def normalise(text: str) -> str:
    """What is compared (module docstring)."""
    text = text.lower().replace("\n", " ").replace("\t", " ").strip()
    text = text.replace(_SPAN, "") if text.startswith(_SPAN) else text
    words = _NOTHING.sub(" ", text.translate(_PUNCTUATION)).split()
    words = [WORDS.get(word, word) for word in words]
    return " ".join(CONTRACTIONS.get(word, word) for word in words)


def _parts(texts: Sequence[str]) -> set[str]:
    return {part for part in map(normalise, texts) if part}
