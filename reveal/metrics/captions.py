"""Caption metrics: CIDEr-D, BLEU and ROUGE-L as COCO's evaluation computes them.

    cider_d(["two giraffes", ...], [["Two giraffes stand by a tree.", ...], ...]).mean    # papers: times 100

One caption and one or more references for each image, tokenized by `ptb_tokenizer.words`.

| function | range | what it is |
| --- | --- | --- |
| `cider_d` | [0, 10] | cosine of n-gram counts weighted by how rare they are (Vedantam et al., CVPR 2015, section 5) |
| `bleu` | [0, 1] | precision of n-grams over the set, four numbers (Papineni et al., 2002) |
| `rouge_l` | [0, 1] | longest common subsequence (Lin, 2004) |
| `nocaps` | [0, 10] | CIDEr-D for images with known, mixed and novel objects (Agrawal et al., ICCV 2019) |

**CIDEr-D.** For n = 1..4: counts times idf = ln(images) - ln(images whose references have the n-gram); a candidate's
weights are clipped to the reference's in the product, not in the norm, so that repeating a word does not pay; times
exp(-(difference of lengths)^2 / (2 6^2)); then the mean over n and over references, times 10. To know:

- idf comes from the references of the set that is scored, so a caption's score depends on the other images. A single
  image scores exactly 0 (coco-caption issue 9).
- A length is the number of bigrams: captions of one word and of none are equally long.

**BLEU** is of the whole set, not a mean over images: matches and lengths are summed first. The reference length is
that of the reference nearest in length, the shorter of two; the tiny numbers that prevent a division by 0 are COCO's.

**ROUGE-L** takes the best precision and the best recall of all references, each by itself and maybe of two different
ones, and their F with beta = 1.2.

**nocaps.** Each domain is a set by itself, with idf of its own, as in public evaluation scripts (the benchmark's own
runs on a server); "all" is therefore no mean of the three.
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from reveal.metrics.ptb_tokenizer import words

N = 4  # the longest n-grams
SIGMA = 6.0
BETA = 1.2
SMALL, TINY = 1e-9, 1e-15
DOMAINS = ("in", "near", "out")

Gram = tuple[str, ...]
Captions = Sequence[str]
References = Sequence[Sequence[str]]


class SetScore(NamedTuple):
    """The mean over images and the score of each, in their order."""

    mean: float
    each: list[float]


def cider_d(candidates: Captions, references: References) -> SetScore:
    """CIDEr-D. Raises ValueError unless each image has a caption and a list of references."""
    _check(candidates, references)
    counts = [[_ngrams(words(reference)) for reference in group] for group in references]
    images_with = Counter(gram for group in counts for gram in set().union(*group))
    idf = {gram: math.log(len(counts)) - math.log(images) for gram, images in images_with.items()}
    unseen = math.log(len(counts))
    each = []
    for candidate, group in zip(candidates, counts, strict=True):
        vector = _weighted(_ngrams(words(candidate)), idf, unseen)
        each.append(10 * statistics.fmean(_similarity(vector, _weighted(counted, idf, unseen)) for counted in group))
    return SetScore(statistics.fmean(each), each)


def bleu(candidates: Captions, references: References) -> tuple[float, float, float, float]:
    """BLEU-1 to BLEU-4 of the set. Raises as `cider_d`."""
    _check(candidates, references)
    matched, total, length, target = [0] * N, [0] * N, 0, 0
    for candidate, group in zip(candidates, references, strict=True):
        caption, known = words(candidate), [words(reference) for reference in group]
        most: Counter[Gram] = Counter()
        for reference in known:
            most |= _ngrams(reference)
        for gram, count in (_ngrams(caption) & most).items():
            matched[len(gram) - 1] += count
        total = [count + max(0, len(caption) - n) for n, count in enumerate(total)]
        length += len(caption)
        target += min((abs(len(reference) - len(caption)), len(reference)) for reference in known)[1]
    ratio = (length + TINY) / (target + SMALL)
    brevity = math.exp(min(0.0, 1 - 1 / ratio))
    precisions = [(right + TINY) / (count + SMALL) for right, count in zip(matched, total, strict=True)]
    one, two, three, four = (brevity * math.prod(precisions[:n]) ** (1 / n) for n in range(1, N + 1))
    return one, two, three, four


def rouge_l(candidates: Captions, references: References) -> SetScore:
    """ROUGE-L. Raises as `cider_d`."""
    _check(candidates, references)
    each = []
    for candidate, group in zip(candidates, references, strict=True):
        caption, *known = (words(text) or [""] for text in (candidate, *group))  # no words count as one, as in COCO's
        common = [_common_subsequence(caption, reference) for reference in known]
        precision = max(common) / len(caption)
        recall = max(length / len(reference) for length, reference in zip(common, known, strict=True))
        each.append((1 + BETA**2) * precision * recall / (recall + BETA**2 * precision) if precision else 0.0)
    return SetScore(statistics.fmean(each), each)


def nocaps(candidates: Captions, references: References, domains: Sequence[str]) -> dict[str, float]:
    """CIDEr-D of "in", "near", "out" and "all", without domains that have no image. `domains`: of each image, as in the
    benchmark's file ("in-domain") or short ("in"). Raises ValueError for others."""
    _check(candidates, references)
    short = [domain.removesuffix("-domain") for domain in domains]
    if len(short) != len(candidates) or not set(short) <= set(DOMAINS):
        given = f"{len(short)} domains {sorted(set(domains))} for {len(candidates)} captions"
        raise ValueError(f"{given}: give each image one of {', '.join(DOMAINS)}")
    scores = {}
    for domain in DOMAINS:
        if chosen := [i for i, name in enumerate(short) if name == domain]:
            scores[domain] = cider_d([candidates[i] for i in chosen], [references[i] for i in chosen]).mean
    return scores | {"all": cider_d(candidates, references).mean}


def _ngrams(tokens: Sequence[str]) -> Counter[Gram]:
    return Counter(tuple(tokens[i : i + n]) for n in range(1, N + 1) for i in range(len(tokens) - n + 1))


class _Vector(NamedTuple):
    """Weights of n-grams, the norm for each n, the number of bigrams."""

    weights: dict[Gram, float]
    norms: list[float]
    length: int


def _weighted(counts: Counter[Gram], idf: Mapping[Gram, float], unseen: float) -> _Vector:
    weights = {gram: count * idf.get(gram, unseen) for gram, count in counts.items()}
    norms = [math.hypot(*(w for gram, w in weights.items() if len(gram) == n)) for n in range(1, N + 1)]
    return _Vector(weights, norms, sum(count for gram, count in counts.items() if len(gram) == 2))


def _similarity(candidate: _Vector, reference: _Vector) -> float:
    products = [0.0] * N
    for gram, weight in candidate.weights.items():
        other = reference.weights.get(gram, 0.0)
        products[len(gram) - 1] += min(weight, other) * other
    norms = [a * b for a, b in zip(candidate.norms, reference.norms, strict=True)]
    cosine = sum(product / norm for product, norm in zip(products, norms, strict=True) if norm) / N
    return cosine * math.exp(-((candidate.length - reference.length) ** 2) / (2 * SIGMA**2))


def _common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    row = [0] * (len(b) + 1)
    for word in a:
        before, row = row, [0]
        for i, other in enumerate(b):
            row.append(before[i] + 1 if word == other else max(before[i + 1], row[i]))
    return row[-1]


def _check(candidates: Captions, references: References) -> None:
    if isinstance(candidates, str) or not candidates or len(candidates) != len(references):
        raise ValueError(f"{len(candidates)} captions and {len(references)} lists of references: give one for each")
    for i, group in enumerate(references):
        if isinstance(group, str) or not group:
            raise ValueError(f"references of image {i} are {group!r}: give a list of at least one sentence")
