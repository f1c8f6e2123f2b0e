"""Questions in batches and in text: what is found, read and written, what each item did to it, how a file says so."""

import dataclasses
import functools
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assistants import RECIPE, network, save, vocabulary, workplace
from little_worlds import COUNTRIES as LAND
from little_worlds import COUNTRIES_NETWORK as READS_LAND
from little_worlds import WORLD
from little_worlds import WORLD_NETWORK as NETWORK
from refusal import refused
from reveal_networks import drawn

from common.io.images import read_image
from recipes.countries.augmentation import blank_image
from recipes.countries.phrases import SOURCES as SOURCES_OF_LAND
from recipes.countries.phrases import hops
from recipes.small_world.facts import SOURCES
from recipes.small_world.items import WorldVocabulary
from reveal.assistant import Assistant, answer
from reveal.build.memory_build import build
from reveal.evidence_sheet import BAD, BAR, FOUND, GOOD, sheet
from reveal.memory.items import Item
from reveal.memory.memory import Memory
from reveal.network import weights
from reveal.network.generator import Decoding
from reveal.network.model import Reveal
from reveal.processing.processor import DESCRIBE, Hops, Processor, network_input, processor_of
from reveal.processing.tokenizers import Pieces, Words
from reveal.reader import Reader
from reveal.sources.registry import items_of

BATCH = 8
READ = WORLD.read_item
QUESTIONS = WORLD.evaluation("held_out", 1)


@pytest.fixture(scope="module")
def model():
    return drawn(NETWORK)


@pytest.fixture(scope="module")
def reader(model, tmp_path_factory):
    reader = Reader(model, None, READ, BATCH)
    reader.build(tmp_path_factory.mktemp("reader") / "memory", WORLD.memory_items()[:160], SOURCES)
    return reader


def asked(rows):
    return QUESTIONS["tokens"][rows], QUESTIONS["image"][rows]


@pytest.mark.long
def test_the_best_items_of_each_question_are_found(reader, model):
    tokens, image = asked(slice(0, 7))
    output = reader.ask(tokens, image, k=5)
    query = jax.jit(model.encode_query)(tokens, image)
    rows = reader.memory.rows()
    keys = np.asarray(rows.keys(0, len(rows)))
    scores = np.asarray(query.vector) @ keys.T + np.asarray(query.log_gate)[:, rows.source]
    best = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    np.testing.assert_allclose(output.retrieved.scores, np.take_along_axis(scores, best, 1), atol=1e-5)
    np.testing.assert_array_equal(output.retrieved.ids, rows.ids[best])
    np.testing.assert_allclose(output.prior.mean(axis=1), 1, atol=1e-5)
    assert (output.shares > 0).all() and (output.shares.sum(axis=1) < 1).all()
    assert output.tokens.shape == (7, 8)
    output = reader.ask(tokens, image, k=5, sources=["graph", "vqa"])
    assert set(output.retrieved.sources.ravel().tolist()) <= {0, 3}


def test_any_number_of_questions_is_answered_alike(reader):
    many = reader.ask(*asked(np.arange(BATCH + 3) % len(QUESTIONS["id"])), k=5, decoding=Decoding(2))
    few = reader.ask(*asked(slice(0, 3)), k=5, decoding=Decoding(2))
    for whole, part in (many[0], few[0]), *zip(many.retrieved[:3], few.retrieved[:3], strict=True):
        np.testing.assert_allclose(whole[:3], part, atol=1e-5)
    assert many.tokens.shape == (BATCH + 3, 2)


def test_without_a_memory_the_question_is_alone(model):
    reader, rows = Reader(model, None, READ, BATCH), asked(slice(0, 2))
    output = reader.ask(*rows, k=0)
    assert output.retrieved.ids.shape == output.prior.shape == output.shares.shape == (2, 0)
    none = asked(slice(0, 0))
    for needs_more in (
        lambda: reader.ask(*none, k=0),
        lambda: reader.ask(*rows),
        lambda: reader.add([]),
        lambda: Reader(model).encode([]),
    ):
        refused(ValueError, needs_more)


def test_changes_are_read_at_once(reader):
    about = WORLD.memory_items(WORLD.world.newcomers)
    before = len(reader.memory)
    ids = reader.add(about)
    assert ids == [item.id for item in about] and len(reader.memory) == before + len(about)
    changed = Item(about[0].source, {"text": "home cave"}, about[0].picture, about[0].id)
    reader.edit([changed])
    assert reader.memory.items([changed.id])[0].fields == {"text": "home cave"}
    key, value = reader.encode([changed])
    np.testing.assert_allclose(reader.memory.values(np.array([changed.id])), value, atol=1e-6)
    found = reader.memory.search(key, 1)
    assert found.scores[0, 0] == pytest.approx(1, abs=1e-5)
    reader.delete(ids)
    assert len(reader.memory) == before


QUESTION = "food ?"
TWO_HOPS = "Which language is spoken in this country?"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return workplace(tmp_path_factory.mktemp("assistant") / "here", 40)


@pytest.fixture(scope="module")
def assistant(place):
    build(place / "memory", [items_of(str(place))], Assistant.load(place))
    return Assistant.load(place, memory=place / "memory")


@pytest.fixture(scope="module")
def evidence(assistant, place):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reveal.assistant.LEFT_OUT", 2)  # in two parts, the second of which is filled up
        return assistant.ask(place / "asked.png", QUESTION, k=3)


@pytest.fixture(scope="module")
def by_hand(assistant, place):
    """The network's own methods, one row, with some items in three places, the others empty; what was found."""
    model, inputs = assistant.model, assistant.processor
    query = jax.jit(model.encode_query)(inputs.question(QUESTION)[None], inputs.image(place / "asked.png")[None])
    found = assistant.memory.search(np.asarray(query.vector), 3, None, np.asarray(query.log_gate))
    values, fuse = jnp.asarray(assistant.memory.values(found.ids)), jax.jit(model.fuse)
    return lambda ids: fuse(query, values, jnp.asarray(found.scores), jnp.asarray(np.isin(found.ids, list(ids)))), found


@pytest.mark.long
def test_the_answer_is_the_networks_own(assistant, by_hand, evidence):
    ids, (fuse, found) = [one.item.id for one in evidence.items], by_hand
    fused = fuse(ids)
    assert found.ids[0].tolist() == ids
    generated = assistant.model.generate(fused, Decoding(2, 4, 0))
    assert evidence.answer == WORLD.vocabulary.decode(np.asarray(generated.tokens[0])) != ""
    assert evidence.log_probability == pytest.approx(float(generated.log_probability[0]), abs=1e-4)
    np.testing.assert_allclose([one.prior for one in evidence.items], fused.prior[0], atol=1e-5)
    np.testing.assert_allclose([one.score for one in evidence.items], found.scores[0], atol=1e-5)
    assert sum(one.prior for one in evidence.items) == pytest.approx(3, abs=1e-4)
    assert 0 < sum(one.attention for one in evidence.items) < 1
    assert sum(evidence.gate.values()) == pytest.approx(1, abs=1e-5) and tuple(evidence.gate) == SOURCES


@pytest.mark.long
def test_leaving_an_item_out_does_what_three_passes_without_it_do(assistant, by_hand, evidence):
    ids, (fuse, _) = [one.item.id for one in evidence.items], by_hand
    tokens = np.asarray(assistant.model.generate(fuse(ids), Decoding(2, 4, 0)).tokens[0])
    begun, decode = jnp.asarray([[NETWORK.bos, *tokens[:-1].tolist()]]), jax.jit(assistant.model.logits)

    def likely(some) -> float:
        logits = jax.nn.log_softmax(decode(fuse(some), begun))[0]
        return float(sum(logits[place, token] for place, token in enumerate(tokens) if token))

    expected = [likely(set(ids) - {one}) - likely(ids) for one in ids]
    np.testing.assert_allclose([one.effect for one in evidence.items], expected, atol=1e-4)
    assert max(map(abs, expected)) > 1e-2  # or the comparison would say nothing


def test_attention_is_measured_in_one_row(assistant, monkeypatch):
    """The other rows, without one item each, come some at a time."""
    fused, fuse = [], Reveal.fuse

    def watched(model, query, *inputs, shares=False, **more):
        fused.append((len(query.states), shares))
        return fuse(model, query, *inputs, shares=shares, **more)

    monkeypatch.setattr(Reveal, "fuse", watched)
    query = assistant.query(None, QUESTION)
    values = np.zeros((1, 20, NETWORK.value_tokens, NETWORK.width), np.float32)
    inputs = query, values, np.zeros((1, 20), np.float32), np.ones((1, 20), bool)
    found = jax.eval_shape(lambda: answer(assistant.model, *inputs, Decoding(2)))
    assert fused == [(1, True), (8, False)] and found.effects.shape == found.shares.shape == (20,)


def test_without_a_memory_and_with_a_few_items(assistant, place):
    alone = assistant.ask(place / "asked.png", QUESTION, k=0)
    assert alone.items == () and alone.version == 0 and alone.answer
    without = Assistant(assistant.model, assistant.processor)
    assert without.ask(place / "asked.png", QUESTION).answer == alone.answer
    only = assistant.ask(place / "asked.png", QUESTION, 3, sources=["vqa"])
    assert {one.item.source for one in only.items} == {"vqa"}
    refused(ValueError, without.ask, place / "asked.png", QUESTION, 4, match="memory")


def test_an_answer_knows_other_programs_changes_and_shows_what_was_read(assistant, place, tmp_path, monkeypatch):
    writer = Memory(shutil.copytree(place / "memory", tmp_path / "memory"))
    mine = Assistant(assistant.model, assistant.processor, Memory(tmp_path / "memory"))
    ask = functools.partial(mine.ask, place / "asked.png", QUESTION, k=3)
    best = ask().items[0].item
    writer.delete([best.id])
    next_best = ask().items[0].item
    assert next_best.id != best.id
    assert best.id not in [item.id for item, _ in mine.search(text=QUESTION, k=39)]
    answered = mine._answer

    def while_it_is_edited(*given):
        ids = [next_best.id]
        writer.edit([next_best.with_text("another text")], writer.keys(ids), writer.values(ids))
        writer.compact()
        return answered(*given)

    monkeypatch.setattr(mine, "_answer", while_it_is_edited)
    shown = ask().items[0].item
    assert (shown.id, shown.fields) == (next_best.id, next_best.fields)


def test_searching_by_text_by_image_and_by_both(assistant, place):
    def ids(**query):
        return [item.id for item, _ in assistant.search(**query, k=5)]

    found = {str(ids(**query)) for query in ({"text": QUESTION}, {"image": place / "asked.png"})}
    assert len(found) == 2 and str(ids(text=QUESTION, image=place / "asked.png")) not in found
    scores = [score for _, score in assistant.search(text=QUESTION)]
    assert len(scores) == 10 and scores == sorted(scores, reverse=True)


def test_items_are_encoded_as_in_training(assistant):
    known = WORLD.memory_items()[:12]
    ours = assistant.processor.items(known)
    np.testing.assert_array_equal(ours["tokens"], WORLD.items.tokens[:12])
    np.testing.assert_array_equal(ours["has_image"], WORLD.items.has_image[:12])
    np.testing.assert_allclose(ours["image"], WORLD.items.image[:12] / 255, atol=1e-7)
    keys, values = assistant.encode(known)
    encoded = jax.jit(assistant.model.encode_item)(**ours)
    np.testing.assert_allclose(keys, encoded.key, atol=1e-4)
    np.testing.assert_allclose(values, encoded.value, atol=1e-3)
    image_alone = [Item("vqa", {}, np.zeros((16, 16, 3), np.uint8))]
    rows = network_input(image_alone, assistant.processor.tokenizer, 16, 16)
    assert rows["has_image"].all() and not rows["tokens"].any()


def test_a_recipe_says_how_to_read(tmp_path):
    file = save(tmp_path, network(), RECIPE)
    model, header = weights.load_with_metadata(tmp_path)
    refused(FileNotFoundError, processor_of, file, model.config, header, match=str(tmp_path))
    words = vocabulary(tmp_path)
    inputs = processor_of(file, model.config, header)
    assert (inputs.item_length, inputs.question_length, inputs.answer_length) == (16, 12, 3)
    assert inputs.sources == SOURCES and inputs.image_size == 16 and isinstance(inputs.tokenizer, Words)
    assert not inputs.hops and inputs.blank is None and not inputs.completes
    prefix = dataclasses.replace(header, metadata={"recipe": {"data": RECIPE | {"objective": "prefix"}}})
    assert processor_of(file, model.config, prefix).completes
    assert processor_of(file, model.config, header, words, "abcd").sources == tuple("abcd")
    np.testing.assert_array_equal(inputs.question("food ?")[-4:], 0)
    assert inputs.unknown("Food of the gull?") == ["of", "the", "gull"]
    refused(ValueError, inputs.question, "food " * 12, match="14 tokens")
    for sources, value in (["a", "b"], r"\(a, b\) for the 4"), ([], "for the 4"):
        other = dataclasses.replace(header, metadata={"recipe": {"data": RECIPE | {"sources": sources}}})
        refused(ValueError, processor_of, file, model.config, other, match=value)
    assert processor_of(file, model.config, other, default_sources=SOURCES).sources == SOURCES
    with pytest.raises(ValueError, match=r"100 tokens .* 224"):
        processor_of(file, dataclasses.replace(model.config, vocab_size=100), header)


def test_a_question_of_two_hops_is_asked_as_two_questions(tmp_path):
    """First about the image, then about none, which is a grey one; the items are of the second hop."""
    model = drawn(READS_LAND)
    reader = Reader(model, read_item=LAND.read_item)
    reader.build(tmp_path / "memory", LAND.memory_items(range(3)), SOURCES_OF_LAND)
    questions = {hop["question"].lower(): Hops(hop["about_image"], hop["about_answer"]) for hop in hops()}
    inputs = Processor(LAND.vocabulary, SOURCES_OF_LAND, 16, 44, 32, 16, blank=blank_image(16), hops=questions)
    flag = LAND.evaluation("held_out", 1)["image"][0]
    ask = functools.partial(Assistant(model, inputs, reader.memory).ask, k=3, decoding=Decoding(4))
    both, first = ask(flag, TWO_HOPS), ask(flag, "Which country is this?")
    second = f"Which language is spoken in {first.answer}?"
    assert both.first_hop.as_json() == first.as_json() and first.first_hop is None
    assert both.as_json() == ask(blank_image(16), second).as_json() | {"first_hop": first.as_json()}
    assert ask(None, second).as_json() == both.as_json() | {"first_hop": None}
    ids = ", ".join(str(one.item.id) for one in first.items)
    assert both.first_hop.line() == f"Which country is this? {first.answer or '(nothing)'} (items {ids})"
    assert sheet(both, flag).std() > 0


@pytest.mark.parametrize("place", ["header", "beside"])
def test_a_description_says_how_to_read(tmp_path, place):
    """As the countries write it into the header, or in a file beside older weights."""
    description = LAND.processor()
    file = save(tmp_path, network(), RECIPE, {"processor": description} if place == "header" else {})
    if place == "beside":
        (tmp_path / "processor.json").write_text(json.dumps(description))
    model, header = weights.load_with_metadata(file)
    pieces = Pieces(Path(description["tokenizer"]))
    shape = dataclasses.replace(model.config, vocab_size=len(pieces), bos=pieces.bos)
    processor = processor_of(file, shape, header)
    assert processor.question("Where?").shape == (LAND.text_length,) and processor.sources == SOURCES_OF_LAND
    assert processor.two_hops(f" {TWO_HOPS.lower()} ") == ("Which country is this?", "Which language is spoken in {}?")
    assert processor.two_hops("Where?") is None
    np.testing.assert_array_equal(processor.blank, blank_image(16))
    unknown = dataclasses.replace(header, metadata={"processor": {"lenght": 3}})
    refused(ValueError, processor_of, file, shape, unknown, match="lenght")


def test_an_image_without_a_question_is_to_be_described():
    tokenizer = Words.of_texts(["question : describe the picture"])
    inputs = Processor(tokenizer, ("a",), 16, question_length=9)
    assert inputs.tokenizer.decode(inputs.question("")) == DESCRIBE.lower().replace(":", " :")
    assert not Processor(WorldVocabulary.of_world(), SOURCES, 16, prompt="{}").question(" ").any()
    completes, count = dataclasses.replace(inputs, completes=True), int((inputs.question("") != tokenizer.pad).sum())
    assert completes.question("")[: count + 1].tolist() == [*inputs.question("")[:count], tokenizer.mask]
    np.testing.assert_array_equal(completes.question("what"), inputs.question("what"))
    refused(ValueError, lambda: dataclasses.replace(completes, question_length=count).question(""), match="MASK")


def test_the_sheet_shows_everything(place, evidence):
    page = sheet(evidence, read_image(place / "asked.png"))
    assert page.shape[0] > 3 * FOUND and page.shape[2] == 3
    colours = {tuple(colour) for colour in (page.reshape(-1, 3) * 255).round().astype(int).tolist()}
    effects = [one.effect for one in evidence.items]
    least = 2 / BAR * max(map(abs, effects))  # for a bar of one pixel
    assert (tuple(bytes.fromhex(BAD[1:])) in colours) == any(effect >= least for effect in effects)
    assert tuple(bytes.fromhex(GOOD[1:])) in colours  # bars of priors
    assert any(one.item.picture is not None for one in evidence.items)
    empty = dataclasses.replace(evidence, question="", answer="", items=())
    assert sheet(empty, None).shape[0] < page.shape[0]
