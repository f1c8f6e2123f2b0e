"""Published benchmarks: tiny files in their formats are read, answered and scored as by hand."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from assistants import RECIPE, items, network, save, vocabulary
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from own_files import json_file
from published_files import BY_HAND, examples_of, sets, write
from refusal import refused

from common.io.images import write_image
from common.training.config import instantiate
from common.training.run import evaluate_from_config
from recipes.small_world.facts import SOURCES
from reveal.assistant import Assistant, text_of
from reveal.build.memory_build import build
from reveal.evaluation.benchmarks import Captions, Example, NoCaps, OwnQuestions
from reveal.evaluation.memory_evaluation import Answering, Prediction, SetsEvaluation, retrieval
from reveal.memory.memory import Memory
from reveal.network.config import TowerConfig
from reveal.network.generator import Decoding
from reveal.processing.images import Views
from reveal.processing.processor import Hops
from reveal.reader import reader_fingerprint
from reveal.sources import Questions, Skips, evqa, infoseek
from reveal.sources.records import Question, Record, usable
from reveal.sources.registry import items_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Weights with their recipe, a vocabulary beside them, and a memory of 30 items."""
    folder = tmp_path_factory.mktemp("network")
    recipe = {"task": {"k": 2, "start_from": "runs/warm"}, "data": RECIPE | {"objective": "vqa"}}
    save(folder, network(), {}, {"steps": 1200, "experiment": "toy", "recipe": recipe})
    vocabulary(folder)
    (folder / "knowledge").mkdir()
    items(folder / "knowledge", 30)
    build(folder / "facts", [items_of(str(folder / "knowledge"))], Assistant.load(folder))
    return folder


@pytest.fixture(scope="module")
def assistant(place):
    return Assistant.load(place, memory=place / "facts")


def evaluation(files, place, **changes) -> SetsEvaluation:
    options = {"sets": sets(files), "memory": str(place / "facts"), "batch": 2, "progress": False}
    return SetsEvaluation(**{**options, **changes})


@pytest.mark.parametrize("name", list(BY_HAND))
def test_sets_are_scored_as_by_hand(files, name):
    predictions, left_out, (metric, value), parts = BY_HAND[name]
    one = sets(files)[name]
    one.check()
    examples, counts = examples_of(one)
    found = one.score(examples, predictions)
    assert counts == left_out and len(found.each) == len(predictions)
    assert (found.metric, found.value) == (metric, pytest.approx(value))
    assert {part: found.parts.get(part) for part in parts} == pytest.approx(parts)


def test_domains_of_nocaps_and_karpathys_split(files, tmp_path):
    images = [dict(id=7), dict(id=9, domain="out-domain")]
    captions = [dict(image_id=number, caption="a gull") for number in (7, 9)]
    path = json_file(tmp_path / "captions.json", dict(images=images, annotations=captions))
    examples, counts = examples_of(NoCaps(path=str(path), images=str(files / "images")))
    assert [one.id for one in examples] == [9] and counts == {"without a domain": 1}
    karpathy = Captions(path=str(files / "dataset_coco.json"), images=str(files / "images"), splits=["test"])
    assert [one.id for one in examples_of(karpathy)[0]] == [7]


def shown(records, files) -> list[Record]:
    """Those whose image is there."""
    return list(usable(records, files / "images", Skips(), image_needed=True))


def test_encyclopedic_vqa_is_read(files):
    names = str(files / "val.json")
    found = shown(evqa.records(files / "test.csv", names, skips=Skips()), files)
    assert [(one.number, one.group, one.metadata["seen"], *one.names) for one in found] == [
        (0, "templated", True, "2697"),
        (10, "multi_answer", False, "4f1e2d3c4b5a6978"),
        (11, "multi_answer", False, "2697"),
        (30, "2_hop", None, "2697"),
        (40, "automatic", None, "2697"),
    ]
    assert found[0].metadata["references"] == ("Ardea", "grey, big heron") and found[0].image.name == "heron.jpg"
    assert found[1].text == 'what does "it"\neat' and found[1].answers == ("fish, seeds, worms", "moss")
    assert found[1].metadata["references"] == ("fish && seeds&&worms", "moss")
    options = {"images": str(files / "images")}  # names are needed for the others
    for more in ({}, {"names": names, "kinds": ["multi_answer"], "most": 1}):
        assert [one.id for one in Questions("evqa", str(files / "test.csv"), options | more)] == [10]
    plain = json_file(files / "id2name.json", {"2697": "inat/heron.jpg"})
    assert evqa.names_of([plain, names]) == {"2697": "inat/heron.jpg"}


def test_invalid_tables_are_refused(files, tmp_path):
    unclosed = f'{",".join(evqa.NEEDED)}\nq,a,templated,1\n"q,a,templated,1\nq,a,templated,1\n'
    for text, value in (("question,answer\nx,y\n", "question_type"), (unclosed, "row 3")):
        (tmp_path / "broken.csv").write_text(text)
        refused(ValueError, list, evqa.records(tmp_path / "broken.csv", skips=Skips()), match=value)
    refused(ValueError, evqa.names_of, [json_file(tmp_path / "x.json", [1])], match=r"x\.json")
    refused(ValueError, lambda: list(evqa.records(files / "test.csv", kinds=["x"], skips=Skips())), match="x")
    with pytest.raises(ValueError, match="row 4"):
        list(evqa.records(files / "test.csv", str(files / "val.json"), most=1, skips=Skips(True)))


def test_infoseek_is_read(files):
    path, nothing = files / "infoseek.jsonl", {"references": (), "range": None, "entity": ""}
    found = shown(infoseek.records(path, files / "qtype.jsonl", files / "withkb.jsonl", skips=Skips()), files)
    split, texts = {"split": "unseen_question"}, {"references": ("東京", "Tokyo"), "entity": "Q1490"}
    assert [one.metadata for one in found[:3]] == [
        nothing | split | {"id": "v0", "kind": "numerical", "range": (54.9, 67.1)},
        nothing | texts | {"id": "v1", "kind": "string", "split": "unseen_entity"},
        nothing | split | {"id": "v2", "kind": "time", "references": ("1889", "in 1889")},
    ]
    assert [one.number for one in found[:3]] == [0, 1, 2] and found[0].answers == ("61",)
    assert found[3].metadata["references"] == () and found[3].answers == ()
    plain = shown(infoseek.records(path, skips=Skips()), files)
    assert [one.metadata["kind"] for one in plain][:3] == ["numerical", "string", "string"]
    asked = Questions("infoseek", str(path), {"images": str(files / "images")})
    assert [one.answers for one in asked][:2] == [("61",), ("東京",)]
    assert infoseek.span_of({"wikidata": -10, "range": [-9, -11]}) == (-11, -9)
    for given in ([{"wikidata": 10}], [{"wikidata": 10, "range": ["x"]}]):
        assert infoseek.span_of(given) == pytest.approx((9, 11))
    assert all(infoseek.span_of(given) is None for given in (None, [], ["10"], {"range": [1]}, {"wikidata": True}))


@pytest.mark.long
def test_every_set_is_answered_and_reported(files, place, tmp_path):
    out = tmp_path / "out"
    shown = evaluation(files, place).run(str(place), out)
    record = json.loads((out / "results.json").read_text())
    assert (out / "results.md").read_text() == shown + "\n"
    assert [line.split(" | ")[0][2:] for line in shown.splitlines()[2:]] == list(record["rows"]) == list(BY_HAND)
    made = f"{place}/weights.safetensors (experiment toy, step 1,200, objective vqa, begun from runs/warm)"
    encoder = reader_fingerprint(network())
    for name, row in record["rows"].items():
        skipped = {"whose picture cannot be read": 1, "longer than the 12 tokens that the network reads": 1}
        assert row["left_out"] == BY_HAND[name][1] | (skipped if name == "infoseek" else {})
        assert row["questions"] == len(BY_HAND[name][0]) - (2 if name == "infoseek" else 0)
        assert row["weights"] == made and row["asked"] == "k 2, engine exact; greedy, 3 tokens"
        assert row["memory"].startswith(f"{place}/facts (30 items: ") and f"encoder {encoder}" in row["memory"]
        line = next(line for line in shown.splitlines() if line.startswith(f"| {name} |"))
        for text in (f"{row['metric']} {100 * row['value']:.2f}", row["evaluator"], made, row["memory"]):
            assert text in line
        lines = [json.loads(line) for line in (out / f"predictions_{name}.jsonl").read_text("utf-8").splitlines()]
        examples = {one.id: one for one in examples_of(sets(files)[name])[0]}
        assert len(lines) == row["questions"] and all(len(set(line["items"])) == 2 for line in lines)
        scored = [examples[line["id"]] for line in lines], [line["prediction"] for line in lines]
        again = sets(files)[name].score(*scored)
        assert again.value == row["value"] and again.each == [line["score"] for line in lines]
    assert record["memory"]["items"] == 30 and record["weights"]["start_from"] == "runs/warm" and record["k"] == 2
    assert "東京" in (out / "predictions_infoseek.jsonl").read_text("utf-8")
    for path in out.glob("results.*"):
        path.unlink()
    refused(FileExistsError, lambda: evaluation(files, place).run(str(place), out), match="predictions_okvqa")
    assert not list(out.glob(".partial*"))


@pytest.mark.long
def test_answers_are_those_of_the_assistant(files, place, assistant, tmp_path):
    """In partial batches, for two-hop questions, and where windows of an image are looked at."""
    examples, _ = examples_of(sets(files)["infoseek"])
    hops = {"how tall ?": Hops("what ?", "is it {} ?")}
    two_hops = Assistant(assistant.model, dataclasses.replace(assistant.processor, hops=hops), assistant.memory)
    looks = dataclasses.replace(two_hops.processor, views=Views(((0.5, 2),), size_cost=0.0))
    windows = Assistant(network(tower=TowerConfig(width=8, key_dim=6, weight=0.9)), looks)
    build(tmp_path / "facts", [items_of(str(place / "knowledge"))], windows)
    windows.memory = Memory(tmp_path / "facts")
    for one in (assistant, two_hops, windows):
        skips = Skips()
        found = list(Answering(one, 2, Decoding(3), batch=2)(examples, skips))
        assert [example.id for example, _ in found] == ["v0", "v1", "v2", "v5", "v6"]
        assert [answer is None for _, answer in found] == [False] * 3 + [True] * 2 and skips.counts.total() == 2
        views = set()
        for example, answer in found[:3]:
            single = one.ask(example.question.image, example.question.text, 2, None, Decoding(3))
            assert (single.first_hop is None) == (one is assistant or example.id == "v1")
            assert answer.text == single.answer and answer.items == [item.item.id for item in single.items]
            views.add(single.view)
        assert (views == {0}) == (one is not windows)


def run_one(files, place, out, **changes) -> tuple[dict, list[dict]]:
    """The row of E-VQA and its predictions."""
    evaluation(files, place, sets={"evqa": sets(files)["evqa"]}, **changes).run(str(place), out)
    lines = (out / "predictions_evqa.jsonl").read_text("utf-8").splitlines()
    return json.loads((out / "results.json").read_text())["rows"]["evqa"], [json.loads(line) for line in lines]


def test_settings(files, place, tmp_path):
    row, lines = run_one(files, place, tmp_path / "a", k=2, sources=[SOURCES[0]], beams=3, length=2, limit=2)
    assert row["asked"] == f"k 2 of {SOURCES[0]}, engine exact; beams 3, penalty 0.6, 2 tokens"
    assert row["questions"] == 2 and all(len(line["items"]) == 2 for line in lines)
    assert "| 2, limit 2 |" in (tmp_path / "a" / "results.md").read_text()
    row, lines = run_one(files, place, tmp_path / "b", memory=None)
    assert row["memory"] == "none" and row["asked"].startswith("k 0;") and all(not line["items"] for line in lines)


@pytest.mark.parametrize(("change", "value"), [
    (dict(memory=None, k=3), "k is 3"),
    (dict(k=31), "k is 31"),
    (dict(sources=["nowhere"]), "nowhere"),
    (dict(engine="nowhere"), "nowhere"),
    (dict(strict=True), "strict"),
])  # fmt: skip
def test_refusals_before_anything_is_written(files, place, tmp_path, change, value):
    refused(ValueError, lambda: evaluation(files, place, **change).run(str(place), tmp_path / "out"), match=value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "field"), [("infoseek", "types"), ("coco", "images")])
def test_missing_files_are_found_first(files, tmp_path, name, field):
    lost = dataclasses.replace(sets(files)[name], **{field: str(tmp_path / "lost")})
    with pytest.raises(FileNotFoundError, match=f"evaluation.sets.{name}: .*lost"):
        SetsEvaluation({name: lost}).run("nowhere", tmp_path / "out")


def test_a_failing_set_leaves_the_scores_before_it(files, place, tmp_path):
    (tmp_path / "empty").mkdir()
    empty = dataclasses.replace(sets(files)["coco"], images=str(tmp_path / "empty"))
    both = {"evqa": sets(files)["evqa"], "coco": empty}
    with pytest.raises(ValueError, match=r"evaluation.sets.coco: "):
        evaluation(files, place, sets=both).run(str(place), tmp_path / "out")
    assert list(json.loads((tmp_path / "out" / "results.json").read_text())["rows"]) == ["evqa"]
    assert not (tmp_path / "out" / "predictions_coco.jsonl").exists()


def test_a_memory_of_other_weights_is_refused(files, place, tmp_path):
    save(tmp_path, network(seed=1), {})
    shutil.copy(place / "vocabulary.json", tmp_path)
    refused(ValueError, lambda: evaluation(files, place).run(str(tmp_path), tmp_path / "out"), match="encoder")
    row, _ = run_one(files, tmp_path, tmp_path / "out", memory=None, names=list(SOURCES), limit=1)
    assert row["weights"].startswith(f"{tmp_path}/weights.safetensors (")


def test_the_command(files, place, tmp_path, monkeypatch, caplog):
    """`python eval.py evaluation=reveal_sets ...`"""
    monkeypatch.setattr("common.training.run.setup", lambda: None)
    own = sets(files)["evqa"]
    words = ["evaluation=reveal_sets", f"weights={place}", f"evaluation.memory={place / 'facts'}", "sets=[evqa]"]
    words += ["limit=3", "evaluation.progress=false", f"output={tmp_path / 'out'}"]
    words += [f"evaluation.sets.evqa.{name}={getattr(own, name)}" for name in ("path", "images", "names")]
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        config = compose("eval", words)
    whole = instantiate(OmegaConf.to_container(config.evaluation, resolve=True), "evaluation")
    assert list(whole.sets) == ["okvqa", "vqa", "aokvqa", "coco", "nocaps", "evqa", "infoseek"]
    with caplog.at_level("INFO", "common.training.run"):
        evaluate_from_config(config)
    assert "exact match" in caplog.text and "3, limit 3" in caplog.text
    config.sets, config.output = ["okvqa"], str(tmp_path / "other")
    refused(SystemExit, evaluate_from_config, config)


def test_retrieval_is_scored_by_source_where_questions_name_gold_items(assistant):
    memory = assistant.memory
    first, second = memory.items(memory.search(np.ones((1, memory.layout.key_dim)), 2).ids[0])
    golds, found = [first.id, second.id, 2**40, None], [[first.id], [first.id, second.id], [first.id], [second.id]]
    text = text_of(second)
    examples = [
        (Example(Question(n, None, "", (), "", gold), n, (text,)), Prediction("", items))
        for n, (gold, items) in enumerate(zip(golds, found, strict=True))
    ]
    examples.append((Example(Question(9, None), 9, ()), Prediction("", [second.id])))  # a number, of a range alone
    scores = retrieval(memory, examples, 2)
    assert scores["gold items"] == {"questions": 2, "recall@1": 0.5, "recall@2": 1, "MRR": 0.75}
    assert sum(scores[source]["questions"] for source in {first.source, second.source}) == 2
    assert scores["items that contain an answer"] == {"questions": 2, "PRRecall@1": 0.5, "PRRecall@2": 0.5}


def test_own_questions_name_their_gold_items(tmp_path):
    write_image(tmp_path / "gull.png", np.zeros((4, 4, 3), np.float32))
    known = {"answers": ["A  Gull"], "gold": 8, "group": "birds"}
    lines = [{"id": 3, "text": "who", "image": "gull.png", **known}, {"id": 4, "text": "why", "image": "gull.png"}]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, lines)))
    benchmark = OwnQuestions(path=str(tmp_path / "q.jsonl"), images=str(tmp_path))
    examples, left_out = examples_of(benchmark)
    assert [one.question.gold for one in examples] == [8] and sum(left_out.values()) == 1
    assert benchmark.score(examples, ["a gull"]).value == 1 and benchmark.score(examples, ["gull"]).value == 0
