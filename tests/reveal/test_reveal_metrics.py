"""Metrics of captions, answers and retrieval: the public evaluators' results, and each of their rules by itself."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from refusal import refused

from reveal import metrics
from reveal.metrics import aokvqa, evqa, infoseek
from reveal.metrics.vqa import CONTRACTIONS, NUMBERS, digits_and_articles, normalise, strip_punctuation

FIXTURE = json.loads((Path(__file__).parents[1] / "data/reveal/metrics.json").read_text())
QUESTIONS = FIXTURE["aokvqa"]["dataset"]
ANSWERS, CHOICES = (FIXTURE["aokvqa"][f"{task}_predictions"] for task in ("direct_answer", "multiple_choice"))
RANKED, RELEVANT = FIXTURE["retrieval"]["ranked"], FIXTURE["retrieval"]["relevant"]
CAPTIONS = FIXTURE["captions"]
REFERENCES = list(CAPTIONS["references"].values())
CANDIDATES = [captions[0] for captions in CAPTIONS["candidates"].values()]
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
    expected, (captions, references) = CAPTIONS[name], CASES[name]
    cider, rouge = metrics.cider_d(captions, references), metrics.rouge_l(captions, references)
    assert cider.mean == pytest.approx(expected["CIDEr"], abs=1e-9)
    assert cider.each == pytest.approx(expected["CIDEr_per_image"], abs=1e-9)
    assert rouge.mean == pytest.approx(expected["ROUGE_L"], abs=1e-9)
    assert rouge.each == pytest.approx(expected["ROUGE_L_per_image"], abs=1e-9)
    assert metrics.bleu(captions, references) == pytest.approx(expected["BLEU"], abs=1e-9)


def test_words_of_the_java_tokenizer():
    tokenized = JAVA | {pair["in"]: pair["out"] for pair in CAPTIONS["ptb_cases"]}
    for kind in ("references", "candidates"):
        for image, captions in CAPTIONS[kind].items():
            tokenized |= dict(zip(captions, CAPTIONS[f"tokenized_{kind}"][image], strict=True))
    assert {line: " ".join(metrics.words(line)) for line in tokenized} == tokenized
    for line in itertools.chain(*REFERENCES):
        assert metrics.words(" ".join(metrics.words(line))) == metrics.words(line)


def test_a_single_image_scores_zero():
    assert metrics.cider_d(CANDIDATES[:1], REFERENCES[:1]).mean == CAPTIONS["single_image_is_zero"] == 0
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
    assert found["in"] == pytest.approx(CAPTIONS["subset_2_images"]["CIDEr"], abs=1e-9)
    assert found["all"] == pytest.approx(CAPTIONS["expected"]["CIDEr"], abs=1e-9)
    assert found["near"] == 0 and found["out"] == metrics.cider_d(CANDIDATES[3:], REFERENCES[3:]).mean
    assert list(metrics.nocaps(CANDIDATES, REFERENCES, ["out"] * 5)) == ["out", "all"]


def test_vqa_accuracy_of_the_public_evaluator():
    each = []
    for case in FIXTURE["vqa_accuracy"]["cases"]:
        prediction, answers = case["prediction"], case["answers"]
        each.append(100 * metrics.vqa_accuracy(prediction, answers))
        assert each[-1] == pytest.approx(case["official_vqa_accuracy"], abs=1e-9), case["question_id"]
        short = 100 * metrics.vqa_accuracy(prediction, answers, "short")
        assert short == pytest.approx(case["simple_min_n_over_3_on_normalised"], abs=1e-4), case["question_id"]
        assert normalise(prediction) == case["normalised_prediction"]
    assert np.mean(each) == pytest.approx(FIXTURE["vqa_accuracy"]["overall"])


@pytest.mark.parametrize(("prediction", "answers", "current", "older"), [
    ("the dog", ["the dog"] * 9 + ["cat"], 1, 0),  # "dog" is not "the dog", whose article stays
    ("Yes", ["yes"] * 10, 0, 1),
    ("red/white", ["red/white"] * 9 + ["red"], 1, 1),
    ("red/white", ["red/white"] * 10, 1, 0),  # only the prediction is normalised
    ("yes", ["yes "] * 10, 1, 0),
])  # fmt: skip
def test_the_older_evaluator(prediction, answers, current, older):
    assert metrics.vqa_accuracy(prediction, answers) == current
    assert metrics.vqa_accuracy(prediction, answers, "older") == older


def test_punctuation():
    """A space touches one bracket of "(a) b!", but not the "!"; a number's comma decides for every mark."""
    texts = {"red/white": "red white", "red / white": "red  white", "yes!": "yes", "(a) b!": "a b", "u.s.": "us"}
    texts |= {"1,000 (ft)": "1000 ft", "1,000!x": "1000x", "3.5 feet.": "3.5 feet", "it's 5:30": "it's 5:30"}
    texts |= {"." * 40: "." * 8}  # 32 are dropped
    assert {text: strip_punctuation(text).strip() for text in texts} == texts


def test_words():
    assert digits_and_articles("The  Ten an a none") == "10 0"
    assert digits_and_articles("dont hed've Im yall'd've") == "don't he'd've im y'all'd've"
    assert len(NUMBERS) == 12 and len(CONTRACTIONS) == 118
    assert CONTRACTIONS["couldnt've"] == CONTRACTIONS["couldn'tve"] == "couldn't've" and "couldntve" not in CONTRACTIONS
    assert CONTRACTIONS["'ow'sat"] == "'ow's'at" and CONTRACTIONS["somebody'd"] == "somebodyd"
    assert "its" not in CONTRACTIONS and "let's" not in CONTRACTIONS


def test_ok_vqa_counts_five_annotators_twice():
    answers = metrics.ten_answers(["surf"] + ["swim"] * 4)
    assert answers == metrics.ten_answers(answers) == ["surf"] * 2 + ["swim"] * 8
    assert metrics.vqa_accuracy("surf", answers) == pytest.approx(0.6)


def without(predictions: dict[str, str], question: str) -> dict[str, str]:
    return {name: text for name, text in predictions.items() if name != question}


def test_aokvqa_of_the_official_script():
    """Difficult questions count for choices only; nobody is left out, and nothing is normalised."""
    assert 100 * aokvqa.direct_answer(QUESTIONS, ANSWERS) == pytest.approx(FIXTURE["aokvqa"]["direct_answer"], abs=1e-9)
    assert 100 * aokvqa.multiple_choice(QUESTIONS, CHOICES) == FIXTURE["aokvqa"]["multiple_choice"]
    missing = 100 * aokvqa.direct_answer(QUESTIONS, without(ANSWERS, "b"), strict=False)
    assert missing == pytest.approx(FIXTURE["aokvqa"]["direct_answer_missing_b_nonstrict"], abs=1e-9)
    assert aokvqa.direct_answer(QUESTIONS, without(ANSWERS, "c")) == aokvqa.direct_answer(QUESTIONS, ANSWERS)
    assert aokvqa.multiple_choice(QUESTIONS, without(CHOICES, "c"), strict=False) == 0.5
    assert aokvqa.direct_answer(QUESTIONS[:1], {"a": "dog"}) == 1  # 3 of 10; VQA's own rule gives 0.9
    assert aokvqa.direct_answer(QUESTIONS[:1], {"a": "Dog"}) == 0


def test_free_text_maps_to_the_most_similar_choice():
    predictions = {"a": "The Dog", "b": "blue", "c": "nothing", "d": "a tram, not a bus"}
    questions = [*QUESTIONS[:3], QUESTIONS[3] | {"choices": ["car", "city bus", "van", "tram"]}]
    # "nothing" shares no word and takes the first; the tram has 1 of 5 words, the city bus 1 of 6
    assert aokvqa.to_choices(questions, predictions) == {"a": "dog", "b": "blue", "c": "1", "d": "tram"}
    assert aokvqa.to_choices(questions, {"c": "nothing"}, lambda text, choice: float(choice)) == {"c": "4"}
    assert aokvqa.to_choices(questions, {"a": "cat"}, lambda text, choice: float(choice == "dog")) == {"a": "cat"}
    for a, b, overlap in (("a red bus", "red bus", 2 / 3), ("Bus!", "bus", 1), ("bus", "buses", 0), ("", "", 0)):
        assert aokvqa.word_overlap(a, b) == aokvqa.word_overlap(b, a) == pytest.approx(overlap)


def test_exact_match_of_encyclopedic_vqa():
    right = {
        "The answer is two.": "2",
        "Two": "2",
        "t-shirt": "tshirt",
        "dont": "don't",
        "false": "no",
        "КЁЛЬН": "Кёльн",
    }
    for prediction, reference in (right | {"<extra_id_0> heron": "Heron"}).items():
        assert all(evqa.exact_match(prediction, ["a pair", reference], kind) for kind in evqa.KINDS)
    assert not evqa.exact_match("", ["heron"], "templated")
    assert not evqa.exact_match("fish, seeds", ["fish&&seeds"], "automatic")
    lists = {"fish, seeds and moss": True, "fish & moss": False, "fish": False, "fish & seeds": True, "": False}
    found = {text: evqa.exact_match(text, ["Seeds && fish && worms&&"], "multi_answer") for text in lists}
    assert found == lists and evqa.exact_match("fish", ["fish&&seeds&&"], "multi_answer")


def test_numbers_as_infoseek_reads_them():
    single = {"about 1,234.5 m": 1234.5, "10 to 9": 10, "1e3": 1000, ".5": 5, "-.5.2": -5.2, "none": 0, "٣": 3}
    expected = {"9-10": (9, 10), "from -3 to 4": (-3, 4), "1 2 3": (1, 2)}
    expected |= {text: (number, number) for text, number in single.items()}
    assert {text: infoseek.numbers(text) for text in expected} == expected


def test_the_rules_of_infoseek():
    right = ["61", "54.9 metres", "55 - 60", "50 to 65"]  # the last has 10.1 of 17.1, "40 to 65" 10.1 of 27.1
    wrong = ["67.2", "40 to 65", "no idea"]
    assert [text for text in right + wrong if infoseek.relaxed(text, (54.9, 67.1))] == right
    assert infoseek.relaxed("no idea", (-1.0, 1.0))  # 0, as in the evaluator
    assert infoseek.exact_match("the Alps!", ["alps"]) and not infoseek.exact_match("alp", ["alps"])
    splits = ["unseen_question"] * 2 + ["unseen_entity"] * 4
    found = infoseek.scores([True, False, True, False, False, False], splits, ["time"] * 5 + ["string"])
    assert found.score == pytest.approx(2 / (1 / 0.5 + 1 / 0.25)) and found.accuracy == pytest.approx(1 / 3)
    assert found.by_split == {"unseen_question": 0.5, "unseen_entity": 0.25} and found.by_kind["string"] == 0
    assert infoseek.scores([True], splits[:1], ["time"]).score is None
    assert infoseek.scores([True, False], splits[1:3], ["time"] * 2).score < 1e-12


def test_retrieval_of_the_fixture():
    """As lists and as arrays; a list shorter than k is taken whole."""
    for ranked in (RANKED, np.array(RANKED)):
        for k, expected in FIXTURE["retrieval"]["hit_recall"].items():
            assert metrics.recall_at_k(ranked, RELEVANT, int(k)) == pytest.approx(expected)
        assert metrics.mrr(ranked, RELEVANT) == pytest.approx(FIXTURE["retrieval"]["mrr"])
        assert metrics.recall_at_k(ranked, RELEVANT, 99) == metrics.recall_at_k(ranked, RELEVANT, 4)


def test_a_passage_with_an_answer_is_relevant():
    words = {"The City of New York": ["new york"], "C++ code": ["c++"], "state-of-the-art": [" Art "]}
    for text, answers in words.items():
        assert metrics.contains_answer(text, answers)
    for text, answers in (("a.b", ["axb"]), ("anything", ["", "  "])):
        assert not metrics.contains_answer(text, answers)
    passages, answers = [["x", "A party"], ["x", "is blue"]], [["art"], ["blue"]]
    assert [metrics.pr_recall_at_k(passages, answers, k) for k in (1, 2)] == [0, 1]


def test_gate_accuracy():
    gates = np.array([[0.7, 0.2, 0.1], [0.1, 0.5, 0.4], [0.3, 0.3, 0.4], [np.nan, 0.5, 0.5]])
    assert metrics.gate_accuracy(gates, np.array([0, 2, 2, 0])) == 0.5


@pytest.mark.parametrize(("call", "value"), [
    (lambda: metrics.cider_d([], []), "0 captions"),
    (lambda: metrics.bleu(["a"], [["a"], ["b"]]), "2 lists"),
    (lambda: metrics.rouge_l(["a"], ["a"]), "image 0"),
    (lambda: metrics.cider_d(["a", "b"], [["a"], []]), "image 1"),
    (lambda: metrics.cider_d("ab", [["a"], ["b"]]), "2 captions"),
    (lambda: metrics.nocaps(["a"], [["a"]], ["far"]), "far"),
    (lambda: metrics.nocaps(["a"], [["a"]], ["in", "in"]), "2 domains"),
    (lambda: metrics.vqa_accuracy("a", ["a"] * 3), "4 or more"),
    (lambda: metrics.vqa_accuracy("a", ["a"] * 2, "short"), "3 or more"),
    (lambda: metrics.vqa_accuracy("a", "answer"), "answers='answer'"),
    (lambda: aokvqa.multiple_choice(QUESTIONS, CHOICES | {"a": "a dog"}), "a dog"),
    (lambda: aokvqa.multiple_choice(QUESTIONS, without(CHOICES, "c")), r"\('c'\)"),
    (lambda: aokvqa.multiple_choice(QUESTIONS[:1] * 2, CHOICES), "2 questions"),
    (lambda: aokvqa.direct_answer(QUESTIONS[2:3], ANSWERS), "0 questions"),  # only a difficult one
    (lambda: aokvqa.to_choices(QUESTIONS, {"x": "dog"}), "'x'"),
    (lambda: evqa.exact_match("x", [], "2_hop"), r"\[\]"),
    (lambda: evqa.exact_match("x", ["The"], "2_hop"), "The"),
    (lambda: evqa.exact_match("x", ["x"], "y"), "'y'"),
    (lambda: infoseek.exact_match("x", []), r"\[\]"),
    (lambda: infoseek.relaxed("1", (2.0, 1.0)), r"2\.0, 1\.0"),
    (lambda: infoseek.scores([], [], []), "0 questions"),
    (lambda: metrics.recall_at_k(RANKED, RELEVANT, 0), "k=0"),
    (lambda: metrics.recall_at_k([], [], 1), "0 ranked lists"),
    (lambda: metrics.recall_at_k(RANKED, RELEVANT[:2], 1), "3 ranked lists"),
    (lambda: metrics.mrr(RANKED, [[1], [], []]), "2 queries"),
    (lambda: metrics.gate_accuracy(np.ones((2, 3)), np.array([0, 3])), r"\[0, 3\]"),
    (lambda: metrics.gate_accuracy(np.ones((0, 3)), np.array([], int)), r"\(0, 3\)"),
    (lambda: metrics.pr_recall_at_k([["a"]], [["a"]], -1), "k=-1"),
])  # fmt: skip
def test_refusals(call, value):
    refused(ValueError, call, match=value)
