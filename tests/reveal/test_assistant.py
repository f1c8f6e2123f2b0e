"""Asking in words: what is answered, what each item did to it, and how a weights file tells what its network reads."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assistants import RECIPE, items, network, save, vocabulary, workplace
from flax import nnx
from little_countries import COUNTRIES as LAND
from little_countries import NETWORK as READS_LAND
from little_world import NETWORK, WORLD
from reveal_networks import one_line

from common.io.images import read_image
from recipes.countries.augmentation import blank_image
from recipes.countries.phrases import SOURCES as SOURCES_OF_LAND
from recipes.countries.phrases import hops
from recipes.small_world.facts import SOURCES
from recipes.small_world.vocabulary import WorldVocabulary
from reveal.assistant import Assistant
from reveal.build.memory_build import build
from reveal.evidence_sheet import BAD, BAR, FOUND, GOOD, sheet
from reveal.memory.items import Item
from reveal.network import weights
from reveal.network.generator import Beam
from reveal.network.model import Reveal
from reveal.processing.item_arrays import network_input
from reveal.processing.processor import Hops, Processor, processor_of
from reveal.processing.prompts import DESCRIBE
from reveal.processing.tokenizers import Pieces, Words
from reveal.reader import Reader
from reveal.sources.registry import items_of

QUESTION = "food ?"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return workplace(tmp_path_factory.mktemp("assistant") / "here")


@pytest.fixture(scope="module")
def assistant(place):
    build(place / "memory", [items_of(str(place))], Assistant.load(place))
    return Assistant.load(place, memory=place / "memory")


@pytest.fixture(scope="module")
def evidence(assistant, place):
    return assistant.ask(place / "asked.png", QUESTION, k=3)


def by_hand(assistant, place, ids):
    """The network's own methods, one row, with the items of `ids` in three places, the others empty; what was found."""
    model, inputs = assistant.model, assistant.processor
    query = jax.jit(model.encode_query)(inputs.question(QUESTION)[None], inputs.image(place / "asked.png")[None])
    found = assistant.memory.search(np.asarray(query.vector), 3, None, np.asarray(query.log_gate))
    there = np.isin(found.ids, list(ids))
    values = jnp.asarray(assistant.memory.values(found.ids))
    return jax.jit(model.fuse)(query, values, jnp.asarray(found.scores), jnp.asarray(there)), found


def likely(assistant, fused, tokens) -> float:
    """log p of the tokens, one after the other."""
    begun = jnp.asarray([[NETWORK.bos, *tokens[:-1].tolist()]])
    logits = jax.nn.log_softmax(jax.jit(assistant.model.logits)(fused, begun))[0]
    return float(sum(logits[place, token] for place, token in enumerate(tokens) if token))


def test_the_answer_is_the_networks_own(assistant, place, evidence):
    ids = [piece.item.id for piece in evidence.pieces]
    fused, found = by_hand(assistant, place, ids)
    assert found.ids[0].tolist() == ids
    generated = assistant.model.generate(fused, Beam(2, 4, 0))
    assert evidence.answer == WORLD.vocabulary.decode(np.asarray(generated.tokens[0])) != ""
    assert evidence.log_probability == pytest.approx(float(generated.log_probability[0]), abs=1e-4)
    np.testing.assert_allclose([piece.prior for piece in evidence.pieces], fused.prior[0], atol=1e-5)
    np.testing.assert_allclose([piece.score for piece in evidence.pieces], found.scores[0], atol=1e-5)
    assert sum(piece.prior for piece in evidence.pieces) == pytest.approx(3, abs=1e-4)
    assert 0 < sum(piece.share for piece in evidence.pieces) < 1
    assert sum(evidence.gate.values()) == pytest.approx(1, abs=1e-5) and tuple(evidence.gate) == SOURCES


def test_leaving_an_item_out_does_what_three_passes_without_it_do(assistant, place, evidence):
    ids = [piece.item.id for piece in evidence.pieces]
    fused = by_hand(assistant, place, ids)[0]
    tokens = np.asarray(assistant.model.generate(fused, Beam(2, 4, 0)).tokens[0])
    whole = likely(assistant, fused, tokens)
    effects = [piece.effect for piece in evidence.pieces]
    expected = [likely(assistant, by_hand(assistant, place, set(ids) - {one})[0], tokens) - whole for one in ids]
    np.testing.assert_allclose(effects, expected, atol=1e-4)
    assert max(map(abs, expected)) > 1e-2  # or the comparison would say nothing


def test_without_a_memory_and_with_a_few_items(assistant, place):
    alone = assistant.ask(place / "asked.png", QUESTION, k=0)
    assert alone.pieces == () and alone.version == 0 and alone.answer
    assert Assistant(assistant.model, assistant.processor).ask(place / "asked.png", QUESTION).answer == alone.answer
    only = assistant.ask(place / "asked.png", QUESTION, 2, sources=["vqa"])
    assert {piece.item.source for piece in only.pieces} == {"vqa"}
    with pytest.raises(ValueError, match="there is no memory to look in: name one"):
        Assistant(assistant.model, assistant.processor).ask(place / "asked.png", QUESTION, 4)


@pytest.mark.parametrize(
    ("k", "sources", "said"),
    [
        (151, None, "k is 151, the memory has 150 items: ask for 1 to 150"),
        (-1, None, "k is -1, the memory has 150 items"),
        (40, ["graph"], "the memory has 38 items of graph: ask for 1 to 38"),
        (2, ["web"], "source 'web' is not in this memory; it has graph, passages"),
    ],
)
def test_more_items_than_there_are(assistant, place, k, sources, said):
    with pytest.raises(ValueError) as caught:
        assistant.ask(place / "asked.png", QUESTION, k, sources)
    assert said in one_line(caught)


def test_searching_by_text_by_picture_and_by_both(assistant, place):
    def ids(**what):
        return [item.id for item, _ in assistant.search(**what, k=5)]

    found = {str(ids(**what)) for what in ({"text": QUESTION}, {"image": place / "asked.png"})}
    assert len(found) == 2 and str(ids(text=QUESTION, image=place / "asked.png")) not in found
    scores = [score for _, score in assistant.search(text=QUESTION)]
    assert len(scores) == 10 and scores == sorted(scores, reverse=True)
    with pytest.raises(ValueError, match="nothing to search by"):
        assistant.search()


def test_items_are_encoded_as_in_training(assistant):
    known = WORLD.memory_items()[:12]
    theirs = WORLD.read_item(known)
    ours = assistant.processor.items(known)
    assert set(ours) == set(theirs)
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name], array, atol=1e-6)
    keys, values = assistant.encode(known)
    made = jax.jit(assistant.model.encode_item)(**theirs)
    np.testing.assert_allclose(keys, made.key, atol=1e-4)
    np.testing.assert_allclose(values, made.value, atol=1e-3)


def test_a_recipe_tells_how_to_read(tmp_path):
    file = save(tmp_path, network(), RECIPE)
    model, header = weights.load_with_metadata(tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"no tokenizer: .* has no spiece\.model or vocabulary\.json or words\.json"
    ):
        processor_of(file, model.config, header)
    words = vocabulary(tmp_path)
    inputs = processor_of(file, model.config, header)
    assert (inputs.item_length, inputs.question_length, inputs.answer_length) == (16, 12, 3)
    assert inputs.sources == SOURCES and inputs.image_size == 16 and isinstance(inputs.tokenizer, Words)
    assert not inputs.hops and inputs.blank is None
    assert processor_of(file, model.config, header, words, "abcd").sources == tuple("abcd")
    np.testing.assert_array_equal(inputs.question("food ?")[-4:], 0)
    assert inputs.unknown("Food of the gull?") == ["of", "the", "gull"]
    with pytest.raises(ValueError, match=r"has 14 tokens, this network reads 12: shorten it"):
        inputs.question("food " * 12)
    for changes, said in (
        ({"sources": ["a", "b"]}, "2 sources (a, b) for the 4 that it tells apart: name them with --names"),
        ({"sources": []}, "no names of sources for the 4"),
    ):
        other = dataclasses.replace(header, metadata={"recipe": {"data": RECIPE | changes}})
        with pytest.raises(ValueError) as caught:
            processor_of(file, model.config, other)
        assert said in one_line(caught)
    assert processor_of(file, model.config, other, default_sources=SOURCES).sources == SOURCES
    with pytest.raises(ValueError, match=r"has 100 tokens and begins answers with 2, the tokenizer 224 and 2: give"):
        processor_of(file, dataclasses.replace(model.config, vocab_size=100), header)


def test_what_takes_two_hops_is_asked_as_two_questions(tmp_path):
    """First about the picture, then about none, which is a grey one; an item of either hop is told."""
    model = Reveal(READS_LAND, rngs=nnx.Rngs(0))
    reader = Reader(model, read_item=LAND.read_item)
    reader.build(tmp_path / "memory", LAND.memory_items(range(3)), SOURCES_OF_LAND)
    questions = {hop["question"].lower(): Hops(hop["about_image"], hop["about_answer"]) for hop in hops()}
    inputs = Processor(LAND.vocabulary, SOURCES_OF_LAND, 16, 44, 32, 16, blank=blank_image(16), hops=questions)
    asking, flag = Assistant(model, inputs, reader.memory), LAND.evaluation("held_out", 1)["image"][0]
    told = asking.ask(flag, "Which language is spoken in this country?", 3)
    first = asking.ask(flag, "Which country is this?", 3)
    second = f"Which language is spoken in {first.answer}?"
    assert told.first_hop.as_json() == first.as_json() and first.first_hop is None
    assert told.as_json() == asking.ask(blank_image(16), second, 3).as_json() | {"first_hop": first.as_json()}
    assert asking.ask(None, second, 3).as_json() == told.as_json() | {"first_hop": None}
    ids = ", ".join(str(piece.item.id) for piece in first.pieces)
    assert told.first_hop.line() == f"Which country is this? {first.answer or '(nothing)'} (items {ids})"
    assert sheet(told, flag).std() > 0
    plain = Assistant(model, dataclasses.replace(inputs, blank=None, hops={}), reader.memory)
    assert plain.ask(flag, "Which language is spoken in this country?", 3).first_hop is None
    assert plain.ask(None, second, 3).log_probability != told.log_probability


@pytest.mark.parametrize("place", ["header", "beside"])
def test_a_description_tells_how_to_read(tmp_path, place):
    """As the countries write it into the header, or in a file beside weights of before."""
    description = LAND.processor()
    file = save(tmp_path, network(), RECIPE, {"processor": description} if place == "header" else {})
    if place == "beside":
        (tmp_path / "processor.json").write_text(json.dumps(description))
    model, header = weights.load_with_metadata(file)
    pieces = Pieces(Path(description["tokenizer"]))
    shape = dataclasses.replace(model.config, vocab_size=len(pieces), bos=pieces.bos)
    processor = processor_of(file, shape, header)
    assert processor.question("Where?").shape == (LAND.text_length,) and processor.sources == SOURCES_OF_LAND
    asked = processor.two_hops(" which language is spoken in this country? ")
    assert asked == ("Which country is this?", "Which language is spoken in {}?")
    assert processor.two_hops("Where?") is None
    np.testing.assert_array_equal(processor.blank, blank_image(16))


def test_an_unknown_key_of_a_description_is_named(tmp_path):
    file = save(tmp_path, network(), RECIPE, {"processor": {"lenght": 3}})
    model, header = weights.load_with_metadata(file)
    with pytest.raises(ValueError, match="lenght"):
        processor_of(file, model.config, header)


def test_what_is_not_asked_is_a_description():
    tokenizer = Words.of_texts(["question : describe the picture"])
    inputs = Processor(tokenizer, ("a",), 16, question_length=9)
    assert inputs.tokenizer.decode(inputs.question("")) == DESCRIBE.lower().replace(":", " :")
    assert not Processor(Words(WorldVocabulary.of_world()), SOURCES, 16, prompt="{}").question(" ").any()


def test_the_sheet_shows_everything(assistant, place, evidence):
    page = sheet(evidence, read_image(place / "asked.png"))
    assert page.shape[0] > 3 * FOUND and page.shape[2] == 3
    colours = {tuple(colour) for colour in (page.reshape(-1, 3) * 255).round().astype(int).tolist()}
    effects = [piece.effect for piece in evidence.pieces]
    least = 2 / BAR * max(map(abs, effects))  # for a bar of one pixel
    assert (tuple(bytes.fromhex(BAD[1:])) in colours) == any(effect >= least for effect in effects)
    assert tuple(bytes.fromhex(GOOD[1:])) in colours  # bars of priors
    shown = [piece for piece in evidence.pieces if piece.item.picture is not None]
    assert shown
    strange = dataclasses.replace(evidence, question="", answer="", pieces=())
    assert sheet(strange, None).shape[0] < page.shape[0]


def test_an_item_without_text_is_found_by_its_picture(assistant):
    rows = network_input([Item("vqa", {}, np.zeros((16, 16, 3), np.uint8))], assistant.processor.tokenizer, 16, 16)
    assert rows["has_image"].all() and not rows["tokens"].any()


def test_other_items_of_the_world_take_their_own_places(tmp_path):
    """Ids of a part of the world are those of the whole."""
    assert '"id": 40' in items(tmp_path, 3, 40).read_text()
