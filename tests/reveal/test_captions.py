"""Caption metrics: the reference programs' results, and the formulas a second time."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from refusal import refused

from reveal import metrics

FIXTURE = json.loads((Path(__file__).parents[1] / "data/reveal/metrics.json").read_text())["captions"]
REFERENCES = list(FIXTURE["references"].values())
CANDIDATES = [captions[0] for captions in FIXTURE["candidates"].values()]
FIRST = [references[0] for references in REFERENCES]

# Caption-like lines and what Stanford's PTBTokenizer 3.4.1 with COCO's list of punctuation makes of them.
JAVA = {
    "rock'n'roll o'clock ma'am O'Brien's 12-o'clock": "rock 'n' roll o'clock ma'am o'brien 's 12-o'clock",
    "it’s a man’s ‘hat’, we'd've": "it 's a man 's hat we 'd 've",  # noqa: RUF001
    "y'all's boys' toys 'cause 'tis": "y' all 's boys toys 'cause 't is",
    "shouldn't've DON'T dont": "should n't 've do n't dont",
    "what?! really!? yes!! no? dog!!cat hello!world": "what ?! really !? yes !! no dog !! cat hello!world",
    "Mr. and Mrs. Smith vs. Dr. Jones at St. Mary's": "mr. and mrs. smith vs. dr. jones at st. mary 's",
    "He is from the U.S. He is tall": "he is from the u.s. he is tall",
    "at 10:30 a.m. or 5:30pm, plan b.": "at 10:30 a.m. or 5:30 pm plan b.",
    "A man in a No. 7 jersey. No. vol. 3": "a man in a no. 7 jersey no vol 3",
    "approx. 5 ft. tall, 3 in. wide": "approx 5 ft. tall 3 in wide",
    "$5 £3 €10 5¢ #1 #hashtag @home 100%": "$ 5 # 3 $ 10 5 cents # 1 #hashtag @home 100 %",
    "a&b AT&T B&W m&m's": "a & b at&t b&w m & m 's",
    "black-white- cat -dog a--b 1-2 3–4": "black-white cat dog a b 1-2 3 4",  # noqa: RUF001
    "red/white/blue and/or w/ cheese w/o a / b": "red/white/blue and/or w / cheese w/o a / b",
    "90's '90s 2nd 1950's-style .22": "90 's '90s 2nd 1950 's style .22",
    "+5 -3 a+b a=b 1,000.50 1,000-foot $1.50-off": "+5 -3 a + b a = b 1,000.50 1,000-foot $ 1.50-off",
    "a_b c*d _under_ *star*": "a_b c * d _ under _ * star *",
    "man's-best [there] {now} <b>": "man 's best -lsb- there -rsb- -lcb- now -rcb- <b>",
    "a cat.A dog, cat.. dog... bird…": "a cat.a dog cat dog bird",
    "café naïve 日本 😀 ½ cup": "café naïve 日本 1/2 cup",
    "T'Challa D'Angelo foo'bar ol' Dunkin' Donuts": "t'challa d'angelo foo bar ol' dunkin' donuts",
    "gonna. wanna, gotta! gimme? lemme: cannot; gonna's": "gon na wan na got ta gim me lem me can not gonna 's",
}


CASES = {  # of the fixture: captions and their references
    "expected": (CANDIDATES, REFERENCES),
    "subset_2_images": (CANDIDATES[:2], REFERENCES[:2]),
    "candidate_equals_first_reference": (FIRST, REFERENCES),
    "empty_candidate_image0": (["", *CANDIDATES[1:]], REFERENCES),
}


@pytest.mark.parametrize("name", CASES)
def test_the_reference_programs_scores(name):
    expected, (captions, references) = FIXTURE[name], CASES[name]
    cider, rouge = metrics.cider_d(captions, references), metrics.rouge_l(captions, references)
    assert cider.mean == pytest.approx(expected["CIDEr"], abs=1e-9)
    assert cider.each == pytest.approx(expected["CIDEr_per_image"], abs=1e-9)
    assert rouge.mean == pytest.approx(expected["ROUGE_L"], abs=1e-9)
    assert rouge.each == pytest.approx(expected["ROUGE_L_per_image"], abs=1e-9)
    assert metrics.bleu(captions, references) == pytest.approx(expected["BLEU"], abs=1e-9)


def test_words_of_the_java_tokenizer():
    tokenized = JAVA | {pair["in"]: pair["out"] for pair in FIXTURE["ptb_cases"]}
    for kind in ("references", "candidates"):
        for image, captions in FIXTURE[kind].items():
            tokenized |= dict(zip(captions, FIXTURE[f"tokenized_{kind}"][image], strict=True))
    assert {line: " ".join(metrics.words(line)) for line in tokenized} == tokenized
    for line in itertools.chain(*REFERENCES):
        assert metrics.words(" ".join(metrics.words(line))) == metrics.words(line)


def test_a_single_image_scores_zero():
    assert metrics.cider_d(CANDIDATES[:1], REFERENCES[:1]).mean == FIXTURE["single_image_is_zero"] == 0
    assert metrics.cider_d(FIRST[:1], REFERENCES[:1]) == (0, [0])


def test_cider_by_hand():
    """Lengths are numbers of bigrams: one word is as long as none, and correct it is a whole unigram, repeated half."""
    references = [["surfer"], ["two dogs"]]
    for caption, expected in (("surfer", 1), ("", 0), ("surfer surfer", np.exp(-1 / 72) / 2)):
        assert metrics.cider_d([caption, "dogs"], references).each[0] == pytest.approx(10 / 4 * expected)


def test_bleu_by_hand():
    """4 of 5 words (the second "the" is one too many), 1 of 4 pairs; nearest reference: 5 - 1 words, the shorter."""
    one, two, three, four = metrics.bleu(["the cat the sat on"], [["the cat on mat", "on the big sat mat here"]])
    assert one == pytest.approx(4 / 5, abs=1e-6) and two == pytest.approx((4 / 5 * 1 / 4) ** 0.5, abs=1e-6)
    assert three < 1e-4 and four < 1e-4
    shorter = metrics.bleu(["the cat"], [["the cat on mat", "the cat on the mat"]])
    assert shorter[1] == pytest.approx(np.exp(1 - 4 / 2), abs=1e-6)


def test_rouge_takes_the_best_recall_of_another_reference():
    found = metrics.rouge_l(["cat sat a mat"], [["the cat sat on mat", "a mat"]]).mean
    assert found == pytest.approx(2.44 * (3 / 4) / (1 + 1.44 * (3 / 4)))


def test_nocaps_scores_each_domain_as_a_set():
    domains = ["in-domain", "in-domain", "near-domain", "out-domain", "out-domain"]
    found = metrics.nocaps(CANDIDATES, REFERENCES, domains)
    assert found["in"] == pytest.approx(FIXTURE["subset_2_images"]["CIDEr"], abs=1e-9)
    assert found["all"] == pytest.approx(FIXTURE["expected"]["CIDEr"], abs=1e-9)
    assert found["near"] == 0 and found["out"] == metrics.cider_d(CANDIDATES[3:], REFERENCES[3:]).mean
    assert list(metrics.nocaps(CANDIDATES, REFERENCES, ["out"] * 5)) == ["out", "all"]


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: metrics.cider_d([], []), "0 captions"),
        (lambda: metrics.bleu(["a"], [["a"], ["b"]]), "2 lists"),
        (lambda: metrics.rouge_l(["a"], ["a"]), "image 0"),
        (lambda: metrics.cider_d(["a", "b"], [["a"], []]), "image 1"),
        (lambda: metrics.cider_d("ab", [["a"], ["b"]]), "2 captions"),
        (lambda: metrics.nocaps(["a"], [["a"]], ["far"]), "far"),
        (lambda: metrics.nocaps(["a"], [["a"]], ["in", "in"]), "2 domains"),
    ],
)
def test_refusals(call, value):
    refused(ValueError, call, match=value)
