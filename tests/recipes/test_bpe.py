"""A vocabulary learnt from captions is one that CLIP's tokenizer reads, and the one that the definition gives."""

import gzip
import itertools
from collections import Counter

import numpy as np
import pytest
from networks import one_line

from plugins.diffusion.io.tokenizer import END, START, WORD_END, Tokenizer
from recipes.captioned_pictures.train_tokenizer import SMALLEST, train_bpe, write_tokenizer

SENNRICH = ["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3  # the paper's example


def random_captions(seed=0, count=60) -> list[str]:
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list("abcd"), rng.integers(1, 8))) for _ in range(25)]
    return [" ".join(rng.choice(words, 4)) for _ in range(count)]


def by_definition(captions, count) -> list[tuple[str, str]]:
    """Everything is counted anew for each merge, over words of ASCII letters."""
    words = [[*word[:-1], word[-1] + WORD_END] for text in captions for word in text.split()]
    merges = []
    while len(merges) < count:
        pairs = Counter(pair for word in words for pair in itertools.pairwise(word))
        best = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
        if best is None or pairs[best] < 2:
            break
        merges.append(best)
        for word in words:
            i = 0
            while i < len(word) - 1:
                if (word[i], word[i + 1]) == best:
                    word[i : i + 2] = [word[i] + word[i + 1]]
                i += 1
    return merges


def test_the_papers_example():
    """es 9, est 9 (t ends the word here), lo 7, then what occurs six times, in alphabetical order."""
    merges = train_bpe(SENNRICH, SMALLEST + 6)[1]
    assert merges[:3] == [("e", "s"), ("es", "t</w>"), ("l", "o")]
    assert merges[3:] == [("e", "w"), ("ew", "est</w>"), ("n", "ewest</w>")]


def test_counting_only_what_changed_gives_the_same_merges():
    captions = random_captions()
    merges = train_bpe(captions, SMALLEST + 80)[1]
    assert len(merges) > 60
    assert merges == by_definition(captions, len(merges))


def test_the_order_of_captions_does_not_matter():
    captions = random_captions(seed=3)
    assert train_bpe(captions, 600) == train_bpe(captions[::-1], 600)


def test_the_vocabulary_is_full_and_ordered_as_clips(tmp_path):
    vocab, merges = train_bpe(random_captions(), 570)
    assert len(vocab) == 570
    assert sorted(vocab.values()) == list(range(570))
    assert (vocab[START], vocab[END]) == (568, 569)
    lines = ["bpe_simple_vocab", *(" ".join(pair) for pair in merges)]
    with gzip.open(tmp_path / "merges.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines))
    read = Tokenizer.from_bpe_file(tmp_path / "merges.txt.gz")
    assert (read.vocab, read.merges) == (vocab, merges)  # numbers that follow from OpenAI's format alone


def test_few_captions_give_a_smaller_vocabulary():
    vocab, merges = train_bpe(["ab ab"], 2048)
    assert merges == [("a", "b</w>")]
    assert len(vocab) == SMALLEST + 1


@pytest.mark.parametrize("text", ["abba dab", "a 3d emoji, twelve o'clock", "zebra! crème 🍎 안녕", ""])
def test_any_text_comes_back_from_the_files(tmp_path, text):
    write_tokenizer(tmp_path / "tokenizer", *train_bpe(random_captions(), 600))
    tokenizer = Tokenizer.from_folder(tmp_path)
    ids = tokenizer.encode(text)
    assert (ids[0], ids[-1]) == (tokenizer.start_id, tokenizer.end_id)
    assert tokenizer.decode(ids).replace(" ", "") == text.replace(" ", "")


def test_learnt_words_are_single_tokens(tmp_path):
    write_tokenizer(tmp_path / "t", *train_bpe(SENNRICH, SMALLEST + 20))
    tokenizer = Tokenizer.from_folder(tmp_path / "t")
    assert [len(tokenizer.encode(word)) - 2 for word in ("newest", "Widest", "low", "tow")] == [1, 1, 1, 3]


def test_too_small_a_size():
    with pytest.raises(ValueError) as error:
        train_bpe(["a"], 513)
    assert "513" in one_line(error)
    assert "514" in one_line(error)
