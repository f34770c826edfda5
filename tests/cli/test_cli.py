"""The command as people use it: what it prints, what it writes, and one sentence for what is wrong."""

from __future__ import annotations

import csv
import itertools
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

import apac
from apac import cli, data
from apac.data.base import Dataset

SHORT = ["--epochs", "1", "--batch", "400"]


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def refusal(*arguments: object) -> str:
    """The one sentence on the error stream; nothing on the other, and status 2."""
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert not isinstance(result.exception, apac.InputError)
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("apac: ")
    return lines[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "cnn"
    result = call("train", "--out", folder, "--epochs", 2, "--batch", 50, "--schedule", "cosine")
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture(scope="module")
def digit(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A test digit as a person would have it: large, dark on white, PNG."""
    dataset = data.load("mnist-5k")
    index = int((dataset.test_labels == 0).nonzero()[0])
    pixels = Image.fromarray(255 - dataset.test_images[index, 0].numpy()).resize((180, 180), Image.Resampling.BICUBIC)
    canvas = Image.new("L", (300, 260), 255)
    canvas.paste(pixels, (60, 30))
    path = tmp_path_factory.mktemp("images") / "digit.png"
    canvas.save(path)
    return path, "0"


@pytest.mark.parametrize(
    "command", [(), ("train",), ("evaluate",), ("classify",), ("reproduce",), ("data", "fetch"), ("data", "path")]
)
def test_every_command_has_help_with_an_example(command):
    result = call(*command, "--help")
    assert result.exit_code == 0
    assert re.search(r"(Example|first look).*apac " + " ".join(command), re.sub(r"\s+", " ", result.stdout))


def test_train_says_what_came_out_and_what_to_do_next(run, tmp_path):
    result = call("train", "--out", tmp_path / "run", *SHORT, "--plain", "--model", "mlp", "--seed", 3)
    assert result.exit_code == 0, result.output
    assert re.search(r"mnist-mlp, 1 epochs in \d+ s, loss \d", result.stdout)
    assert "next: apac evaluate" in result.stdout
    config = apac.load(tmp_path / "run").config
    assert (config.deformation, config.seed, config.batch) == (apac.Compose(), 3, 400)


def test_train_without_a_terminal_shows_progress_as_lines(tmp_path):
    result = call("train", "--out", tmp_path / "run", *SHORT)
    assert re.search(r"training: 100 %, epoch 1/1, rate 0.062, loss \d.*, validation error \d+\.\d+%", result.stderr)


def test_evaluate_prints_the_table_and_writes_json_and_csv(run):
    result = call("evaluate", run, "--passes", "4,1")
    assert result.exit_code == 0, result.output
    form = json.loads((run / "evaluation.json").read_text())
    lines = list(csv.DictReader((run / "evaluation.csv").read_text().splitlines()))
    assert [row["passes"] for row in form["rows"]] == [1, 4]
    assert form["images"] == 1000
    assert [float(line["product_error"]) for line in lines] == [
        form["plain"],
        *(row["product"] for row in form["rows"]),
    ]
    for share in (form["plain"], form["rows"][1]["product"], form["rows"][1]["top2"]):
        assert f"{100 * share:.2f} %" in result.stdout
    assert f"corrected {len(form['corrected'])} and corrupted {len(form['corrupted'])}" in result.stdout


def test_a_second_evaluation_makes_no_passes_again(run, monkeypatch):
    first = call("evaluate", run, "--passes", "1,4")
    form, files = (run / "evaluation.json").read_text(), {path: path.stat().st_mtime_ns for path in scores(run)}
    assert {path.name.partition("-")[2] for path in files} >= {"1.safetensors", "4.safetensors"}

    def never(*arguments: object, **options: object) -> None:
        raise AssertionError("these passes were made before")

    with monkeypatch.context() as patched:
        patched.setattr(apac.Classifier, "score", never)
        second = call("evaluate", run, "--passes", "1,4")
        assert second.exit_code == 0, second.output
        assert call("evaluate", run, "--passes", "4").exit_code == 0
    assert second.stdout == first.stdout
    assert "deciding" not in second.stderr
    assert {path: path.stat().st_mtime_ns for path in scores(run)} == files
    assert call("evaluate", run, "--passes", "1,4").exit_code == 0
    assert (run / "evaluation.json").read_text() == form


def test_another_seed_is_another_evaluation(run, few):
    results = [call("evaluate", run, "--passes", "2", "--seed", seed) for seed in (5, 6)]
    assert all("deciding: 100 %" in result.stderr for result in results)
    assert json.loads((run / "evaluation.json").read_text())["seed"] == 6


def scores(run: Path) -> list[Path]:
    return sorted((run / "scores").iterdir())


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """A fifth of the test images."""
    whole = data.load("mnist-5k")
    part = replace(whole, test_images=whole.test_images[:200], test_labels=whole.test_labels[:200])
    monkeypatch.setattr(data, "load", lambda name, progress: part)
    monkeypatch.setattr("apac.reporting.figures.images.MOST", 8)  # a figure of many images takes long to draw
    return part


def row(stdout: str, name: str) -> str:
    """What a printed table says of something."""
    return re.search(rf"{re.escape(name)}\s*│\s*(.*?)\s*│", stdout).group(1)


def test_evaluate_says_how_many_passes_certainty_takes_and_writes_them(run, few):
    result = call("evaluate", run, "--rule", "certified", "--error", 0.1, "--limit", 64, "--against", 64, "--seed", 2)
    assert result.exit_code == 0, result.output
    truth = few.test_labels.numpy()
    lines = list(csv.DictReader((run / "certified.csv").read_text().splitlines()))
    passes, labels = (np.array([int(line[name]) for line in lines]) for name in ("passes", "label"))
    stopped = np.array([line["stopped"] for line in lines])
    assert [int(line["truth"]) for line in lines] == truth.tolist()
    assert set(stopped) == {"certified", "limit"}
    assert passes.max() == 64  # as --limit says
    assert (passes[stopped == "limit"] == 64).all()

    form = json.loads((run / "certified.json").read_text())
    assert form["rule"] == {"kind": "Certified", "error": 0.1, "limit": 64, "clip": 30.0}
    assert (form["images"], form["seed"], form["failed"]) == (200, 2, 0)
    assert form["mean"] == pytest.approx(passes.mean())
    assert form["median"] == pytest.approx(np.median(passes))
    assert form["percentile99"] == pytest.approx(np.percentile(passes, 99))
    assert form["uncertain"] == (stopped == "limit").sum()
    assert form["wrong"] == pytest.approx((labels != truth).mean())
    loaded = apac.load(run)
    with torch.no_grad():
        plain = loaded.network(loaded.normalize(few.test_images)).argmax(1).numpy()
    assert form["plain"] == pytest.approx((plain != truth).mean())

    assert row(result.stdout, "passes, mean") == f"{passes.mean():.1f}"
    assert row(result.stdout, "passes, median") == f"{np.median(passes):.0f}"
    assert row(result.stdout, "passes, 99th percentile") == f"{np.percentile(passes, 99):.0f}"
    uncertain = (stopped == "limit").sum()
    assert row(result.stdout, "not certain, limit 64") == f"{uncertain} of 200 ({100 * uncertain / 200:.2f} %)"
    assert row(result.stdout, "test error, plain") == f"{100 * form['plain']:.2f} %"
    assert row(result.stdout, "test error, certified") == f"{100 * form['wrong']:.2f} %"
    assert "at most 0.1" in result.stdout
    for name in ("certified.json", "certified.csv", "passes.png"):
        assert name in result.stdout.replace("\n", "").rpartition("wrote")[2]
    with Image.open(run / "passes.png") as picture:
        assert picture.format == "PNG"
        assert np.asarray(picture.convert("L")).std() > 5

    # The images of each kind that 64 passes decide otherwise, from the sums of those passes.
    (kept,) = (run / "scores").glob("*-64.safetensors")
    fixed = load_file(kept)["log_sum"].argmax(1).numpy()
    others = [np.flatnonzero((stopped == why) & (labels != fixed)).tolist() for why in ("certified", "limit")]
    against = form["against"]
    assert against["passes"] == 64
    assert against["certified"] == (stopped == "certified").sum()
    assert [difference["image"] for difference in against["differ"]] == others[0]
    assert against["differ_at_limit"] == others[1] == []  # they have had the same 64 passes
    assert against["wrong"] == pytest.approx((fixed != truth).mean())
    assert f"Of {against['certified']} certified decisions {len(others[0])} differ" in result.stdout
    assert f"have {100 * against['wrong']:.2f} % error" in result.stdout
    assert "deciding by 64 passes: 100 %" in result.stderr


def test_without_against_nothing_is_compared(run, few):
    result = call("evaluate", run, "--rule", "certified", "--limit", 16)
    assert result.exit_code == 0, result.output
    form = json.loads((run / "certified.json").read_text())
    assert "against" not in form
    assert form["rule"] == {"kind": "Certified", "error": 1e-4, "limit": 16, "clip": 30.0}
    assert form["mean"] == 16
    assert "differ" not in result.stdout


def test_classify_goes_on_until_it_is_certain_unless_told_otherwise(run, digit):
    path, label = digit
    result = call("classify", run, path)
    assert result.exit_code == 0, result.output
    said = re.search(rf": {label}  \(certified after (\d+) passes; ahead of \d by \d+\.\d{{3}} ± ", result.stdout)
    assert int(said.group(1)) % 16 == 0
    bolder = re.search(r"certified after (\d+) passes", call("classify", run, path, "--error", 0.3).stdout)
    assert int(bolder.group(1)) < int(said.group(1))
    assert re.search(rf": {label}  \(after 7 passes; ahead of ", call("classify", run, path, "--passes", 7).stdout)


def test_classify_says_so_where_it_is_not_certain(run, tmp_path):
    cross = np.full((60, 60), 255, dtype=np.uint8)  # no digit at all
    cross[27:33, 10:50] = cross[10:50, 27:33] = 0
    Image.fromarray(cross).save(tmp_path / "cross.png")
    result = call("classify", run, tmp_path / "cross.png", "--limit", 16)
    assert result.exit_code == 0, result.output
    assert re.search(r"cross.png: \d  \(not certified after 16 passes; ahead of \d by ", result.stdout)


def test_classify_tells_machines_why_it_stopped_and_how_far_the_label_is_ahead(run, digit):
    path, label = digit
    runs = {
        "certified": call("classify", run, path, "--json"),
        "limit": call("classify", run, path, "--limit", 16, "--json"),
        "fixed": call("classify", run, path, "--passes", 7, "--json"),
    }
    for why, result in runs.items():
        assert result.exit_code == 0, result.output
        (answer,) = json.loads(result.stdout)
        assert answer["stopped"] == why
        assert answer["label"] == label
        assert answer["clipped"] == 0
        best, second = sorted(answer["log_scores"], key=answer["log_scores"].get, reverse=True)[:2]
        assert (answer["label"], answer["runner_up"]) == (best, second)
        assert answer["margin"] == pytest.approx(answer["log_scores"][best] - answer["log_scores"][second])
        assert answer["margin_error"] > 0
    assert json.loads(runs["fixed"].stdout)[0]["passes"] == 7
    assert json.loads(runs["limit"].stdout)[0]["passes"] == 16


def test_classify_reads_a_persons_image_and_says_what_it_did(run, digit):
    path, label = digit
    result = call("classify", run, path, "--passes", 32)
    assert result.exit_code == 0, result.output
    assert re.search(
        rf"{re.escape(str(path))}: {label}  \(after 32 passes; ahead of \d by \d+\.\d{{3}} ± \d+\.\d{{3}}\)",
        result.stdout,
    )
    assert "inverted" in result.stdout
    assert "resized from 300 × 260" in result.stdout


def test_classify_prints_json_for_machines(run, digit):
    path, label = digit
    answers = json.loads(call("classify", run, path, path, "--passes", 16, "--json").stdout)
    assert len(answers) == 2
    assert answers[0]["label"] == label
    assert answers[0]["passes"] == 16
    assert answers[0]["standard_error"] > 0
    assert answers[0]["mean_log_probability"] == max(answers[0]["log_scores"].values())
    assert answers[0] == answers[1]
    single = json.loads(call("classify", run, path, "--passes", 1, "--json").stdout)
    assert single[0]["standard_error"] is None


def test_classify_prints_json_even_if_no_image_can_be_read(run, tmp_path):
    result = call("classify", run, tmp_path / "none.png", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout) == []


def test_the_version_is_printed():
    assert re.fullmatch(r"apac \d+\.\d+\.\d+", call("--version").stdout.strip())


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_ends_quietly(run, digit, unbuffered, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    command = shlex.join([sys.executable, "-m", "apac", "classify", str(run), str(digit[0]), "--passes", "1"])
    done = subprocess.run(f"{command} | head -c 0", shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == "deciding: 100 %\n"


def test_classify_decides_the_good_images_and_names_the_bad_one(run, digit, tmp_path):
    (tmp_path / "empty.png").touch()
    result = call("classify", run, tmp_path / "empty.png", digit[0], "--passes", 4)
    assert result.exit_code == 2
    assert str(digit[0]) in result.stdout
    assert re.fullmatch(r"apac: .*empty.png is empty.*", result.stderr.splitlines()[0])


def test_reproduce_writes_a_report_that_stands_alone(tmp_path, monkeypatch, few):
    from apac.paper import recipes

    recipe = recipes.RECIPES["mnist-5k-mlp"]
    rules = tuple(apac.Certified(error, limit=32) for error in (0.3, 0.1))
    short = replace(recipe, deformed=replace(recipe.deformed, epochs=1, batch=400), passes=(1, 4), certified=rules)
    monkeypatch.setitem(recipes.RECIPES, "mnist-5k-mlp", short)
    out = tmp_path / "report"
    result = call("reproduce", "mnist-5k-mlp", "--out", out)
    assert result.exit_code == 0, result.output
    page = (out / "report.html").read_text()
    assert not re.search(r'(src|href)="(?!data:)', page)
    form = json.loads((out / "results.json").read_text())
    for name in ("deformed", "original"):
        assert f"{100 * form['trainings'][name]['evaluation']['plain']:.2f} %" in page
        assert f"{100 * form['trainings'][name]['evaluation']['plain']:.2f} %" in result.stdout
    assert form["trainings"]["original"]["config"]["deformation"] == {"kind": "Compose", "parts": []}
    assert [each["rule"]["error"] for each in form["certified"]] == [0.3, 0.1]
    for each in form["certified"]:
        assert f"<td>{each['mean']:.1f}</td>" in page
        assert f"{100 * each['wrong']:.2f} %" in result.stdout
    assert [len(form["trainings"][name]["history"]) for name in ("deformed", "original")] == [1, 1]
    for name in ("error-against-m", "certified", "deformed-samples", "misclassified", "first-layer-weights"):
        with Image.open(out / f"{name}.png") as picture:
            assert np.asarray(picture.convert("L")).std() > 5
    assert page.count("data:image/png") == len(list(out.glob("*.png")))

    assert "already holds a report" in refusal("reproduce", "mnist-5k-mlp", "--out", out)
    (out / "runs" / "mine").mkdir()  # a run of the user's own beside those of the report
    (out / "runs" / "mine" / "run.json").write_text("{}")
    before = (out / "runs" / "deformed" / "weights.safetensors").stat().st_mtime_ns
    assert call("reproduce", "mnist-5k-mlp", "--out", out, "--resume").exit_code == 0
    assert (out / "runs" / "deformed" / "weights.safetensors").stat().st_mtime_ns == before
    assert [each["seconds"] for each in json.loads((out / "results.json").read_text())["certified"]] == [
        each["seconds"] for each in form["certified"]
    ]  # not decided again
    (out / "corrected.png").write_bytes(b"of an earlier report")
    assert call("reproduce", "mnist-5k-mlp", "--out", out, "--overwrite", "--seed", 1).exit_code == 0
    assert (out / "runs" / "mine" / "run.json").exists()
    assert json.loads((out / "results.json").read_text())["trainings"]["deformed"]["config"]["seed"] == 1
    assert not (out / "corrected.png").exists() or (out / "corrected.png").stat().st_size > 1000


def test_all_makes_every_row_and_the_papers_table_and_resuming_makes_nothing_twice(tmp_path, monkeypatch, few):
    from apac.paper import recipes

    rows = {name: recipes.RECIPES[f"mnist-5k-{name}"] for name in ("cnn", "mlp")}
    for name, recipe in rows.items():
        config = replace(recipe.deformed, epochs=2, batch=400)
        short = replace(recipe, name=f"mnist-{name}", deformed=config, passes=(1, 4), certified=(), share=0.5)
        monkeypatch.setitem(recipes.RECIPES, f"mnist-{name}", short)
    monkeypatch.setattr(recipes, "TABLE", ("mnist-cnn", "mnist-mlp"))
    monkeypatch.setattr("apac.paper.table2.NAMES", {"mnist-5k": "MNIST"})
    out = tmp_path / "all"
    result = call("reproduce", "all", "--out", out)
    assert result.exit_code == 0, result.output
    page = (out / "report.html").read_text()
    for name in ("mnist-cnn", "mnist-mlp"):
        assert f'<a href="{name}/report.html">' in page
        form = json.loads((out / name / "results.json").read_text())
        deformed, original = (form["trainings"][kind] for kind in ("deformed", "original"))
        assert [len(deformed["history"]), len(original["history"])] == [2, 1]
        for error in (deformed["evaluation"]["rows"][-1]["product"], original["evaluation"]["plain"]):
            assert f"<td>{100 * error:.2f} (" in page
        assert "certified.png" not in [path.name for path in (out / name).glob("*.png")]
    assert (out / "mnist-5k-error-against-m.png").stat().st_size > 5000

    # Resumed with more passes: nothing is trained, and the passes that were summed are not made again.
    monkeypatch.setattr("apac.training.loop.advance", lambda *a, **o: pytest.fail("trained again"))
    made: list[tuple[int, int]] = []
    score = apac.Classifier.score
    monkeypatch.setattr(
        apac.Classifier,
        "score",
        lambda self, x, start, stop, **o: made.append((start, stop)) or score(self, x, start, stop, **o),
    )
    result = call("reproduce", "all", "--out", out, "--resume", "--passes", "1,4,8")
    assert result.exit_code == 0, result.output
    assert made == [(4, 8), (4, 8)]


@pytest.fixture
def tiny(monkeypatch) -> None:
    """Recipes of the full sets, made of little: one step an epoch on the embedded digits, and four passes."""
    from apac.paper import recipes

    for name in ("mnist-cnn", "mnist-cnn-distinctive"):
        recipe = recipes.RECIPES[name]
        config = replace(recipe.deformed, data="mnist-5k", epochs=2, batch=4000)
        monkeypatch.setitem(recipes.RECIPES, name, replace(recipe, deformed=config, passes=(1, 4), certified=()))
    monkeypatch.setattr(recipes, "TABLE", ("mnist-cnn",))


def test_a_class_distinctive_recipe_is_shown_beside_the_class_indistinctive_one(tmp_path, few, tiny):
    out = tmp_path / "report"
    result = call("reproduce", "mnist-cnn-distinctive", "--out", out)
    assert result.exit_code == 0, result.output
    form = json.loads((out / "results.json").read_text())["trainings"]
    assert [name for name in form if len(form[name]["evaluation"]["rows"]) == 2] == ["distinctive", "indistinctive"]
    assert form["distinctive"]["config"]["deformation"]["kind"] == "PerClass"
    page = (out / "report.html").read_text()
    for words in ("class-distinctive deformation", "class-indistinctive deformation", "not tried", "0.23 %"):
        assert f"<td>{words}</td>" in page
    assert "APAC, 2 × 4 passes" in page
    for words in ("class-distinctive deformation, passes with each of 2 sets", "class-indistinctive deformation"):
        assert f" test images, {words}<" in page
    wrong = [set(form[name]["evaluation"]["wrong"]) for name in form]
    assert f"for {len(wrong[1] - wrong[0])} images, and the other way round for {len(wrong[0] - wrong[1])} (" in page
    assert "and the other way round" in result.stdout
    lines = (out / "results.csv").read_text().splitlines()
    assert [line.split(",")[:3] for line in lines[:2]] == [
        ["training", "rule", "passes"],
        ["distinctive", "plain", "1"],
    ]
    assert [line.split(",")[0] for line in lines[1:]] == ["distinctive"] * 3 + ["indistinctive"] * 3
    assert sorted(path.stem for path in out.glob("*.png")) == ["deformed-samples", "error-against-m", "misclassified"]
    assert "deciding, class-indistinctive deformation: 100 %" in result.stderr


def test_a_report_of_another_recipe_is_not_mixed_with(tmp_path, few, tiny):
    out = tmp_path / "report"
    assert call("reproduce", "mnist-cnn", "--out", out).exit_code == 0
    for more in ([], ["--hours", 1]):
        assert "already holds a report" in refusal("reproduce", "mnist-cnn-distinctive", "--out", out, *more)
    assert "report of another recipe" in refusal("reproduce", "mnist-cnn-distinctive", "--out", out, "--resume")
    assert "holds the report of one recipe" in refusal("reproduce", "all", "--out", out)
    (out / "certified.png").write_bytes(b"of an earlier report")
    assert call("reproduce", "mnist-cnn-distinctive", "--out", out, "--overwrite").exit_code == 0
    assert sorted(path.name for path in (out / "runs").iterdir() if (path / "run.json").exists()) == [
        "distinctive",
        "indistinctive",
    ]
    assert not (out / "certified.png").exists()


def test_nothing_is_lost_where_the_hours_do_not_suffice(tmp_path, few, tiny):
    for name, out in (("mnist-cnn", tmp_path / "one"), ("all", tmp_path / "all")):
        assert call("reproduce", name, "--out", out).exit_code == 0
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        assert "give more hours" in refusal("reproduce", name, "--out", out, "--overwrite", "--hours", 1e-9)
        assert "already holds a report" in refusal("reproduce", name, "--out", out)
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_hours_decide_the_epochs_which_a_resumed_training_keeps(tmp_path, few, tiny, monkeypatch):
    monkeypatch.setattr("apac.paper.recipes.epochs_within", lambda config, images, seconds: 5)
    out = tmp_path / "report"
    assert call("reproduce", "mnist-cnn", "--out", out, "--hours", 1).exit_code == 0
    monkeypatch.setattr("apac.paper.recipes.epochs_within", lambda *given: pytest.fail("measured again"))
    for more in ([], ["--hours", 9]):
        assert call("reproduce", "mnist-cnn", "--out", out, "--resume", *more).exit_code == 0
        form = json.loads((out / "results.json").read_text())["trainings"]
        assert [form[name]["config"]["epochs"] for name in ("deformed", "original")] == [5, 1]
        assert "apac reproduce mnist-cnn --seed 0 --epochs 5<" in (out / "report.html").read_text()
    assert call("reproduce", "mnist-cnn", "--out", out, "--resume", "--epochs", 5).exit_code == 0
    said = refusal("reproduce", "mnist-cnn", "--out", out, "--resume", "--epochs", 6)
    assert "runs/deformed holds a run of another configuration (epochs 5, not 6); resume it" in said


def test_epochs_are_chosen_in_one_way(tmp_path):
    ways = (["--hours", 1], ["--epochs", 2], ["--schedule", "paper"])
    for first, second in itertools.combinations(ways, 2):
        said = refusal("reproduce", "mnist-cnn", "--out", tmp_path / "r", *first, *second)
        assert "each of --hours, --epochs and --schedule paper decides the number of epochs; choose one" in said


def test_a_folder_of_another_configuration_is_refused_before_anything_is_made(tmp_path, few, tiny, monkeypatch):
    from apac.paper import recipes

    monkeypatch.setitem(recipes.RECIPES, "mnist-mlp", replace(recipes.RECIPES["mnist-cnn"], name="mnist-mlp"))
    monkeypatch.setattr(recipes, "TABLE", ("mnist-cnn", "mnist-mlp"))
    out = tmp_path / "all"
    assert call("reproduce", "mnist-mlp", "--out", out / "mnist-mlp").exit_code == 0
    said = refusal("reproduce", "all", "--out", out, "--resume", "--seed", 1)
    assert "mnist-mlp/runs/deformed holds a run of another configuration (seed 0, not 1); resume it" in said
    assert not (out / "mnist-cnn").exists()


def test_the_folder_of_a_table_is_not_taken_for_that_of_a_recipe(tmp_path, few, tiny):
    out = tmp_path / "all"
    result = call("reproduce", "all", "--out", out)
    assert result.exit_code == 0
    assert "mnist-cnn: 2 epochs with deformed data and 1 with original data, then M up to 4." in result.stdout
    assert "mnist-cnn: training, deformed data: 100 %" in result.stderr
    page = (out / "report.html").read_bytes()
    for more in ([], ["--resume"], ["--overwrite"]):
        said = refusal("reproduce", "mnist-cnn", "--out", out, *more)
        assert f"holds the paper's table, with a folder for each recipe; choose {out / 'mnist-cnn'}, or" in said
    said = refusal("reproduce", "mnist-cnn-distinctive", "--out", out, "--overwrite")
    assert "holds the paper's table, with a folder for each recipe; choose another folder." in said
    assert "is a file; a report needs a folder" in refusal("reproduce", "all", "--out", out / "report.html")
    assert (out / "report.html").read_bytes() == page
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "report.html").write_text("mine")
    assert "already holds a report" in refusal("reproduce", "all", "--out", tmp_path / "other")


def test_ctrl_c_before_anything_is_replaced_says_to_overwrite_still(tmp_path, few, tiny, monkeypatch):
    def stop(*given: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "report"
    assert call("reproduce", "mnist-cnn", "--out", out).exit_code == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    monkeypatch.setattr("apac.paper.recipes.epochs_within", stop)
    result = call("reproduce", "mnist-cnn", "--out", out, "--overwrite", "--hours", 1)
    assert "nothing was replaced; go on with: apac reproduce mnist-cnn --seed 0 --hours 1 --overwrite" in result.stderr
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_ctrl_c_says_how_to_go_on_with_all_that_was_asked(tmp_path, few, tiny, monkeypatch):
    def stop(*given: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("apac.paper.reproduce.train", stop)
    monkeypatch.setattr("apac.paper.recipes.epochs_within", lambda config, images, seconds: 5)
    result = call("reproduce", "all", "--out", tmp_path / "a b", "--hours", 2.5, "--passes", "1,4", "--seed", 3)
    assert f"apac reproduce all --seed 3 --passes 1,4 --hours 2.5 --resume --out '{tmp_path / 'a b'}'" in result.stderr


def test_help_names_every_recipe():
    from apac.paper import recipes

    shown = " ".join(call("reproduce", "--help").stdout.split())
    for name in recipes.RECIPES:
        assert name in shown


def test_a_shipped_network_is_evaluated_into_the_folder_of_its_name_here(tmp_path, few, monkeypatch):
    from apac.runs import folder as run_folder

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data, "load", lambda name, **options: few)
    shipped = {path: path.stat().st_mtime_ns for path in run_folder.PRETRAINED.rglob("*")}
    result = call("evaluate", "mnist-cnn", "--passes", "1,2")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "mnist-cnn" / "evaluation.json").exists()
    assert {path: path.stat().st_mtime_ns for path in run_folder.PRETRAINED.rglob("*")} == shipped


def test_data_path_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("APAC_DATA", str(tmp_path))
    assert call("data", "path").stdout.strip() == str(tmp_path)


def picture(path: Path, mode: str, size: tuple[int, int], **options: object) -> Path:
    Image.new(mode, size).save(path, **options)
    return path


def animated(path: Path) -> Path:
    frames = [Image.new("L", (30, 30), shade) for shade in (0, 255)]
    frames[0].save(path, save_all=True, append_images=frames[1:])
    return path


def text(path: Path) -> Path:
    path.write_text("seven")
    return path


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda folder: folder / "none.png", "no file"),
        (lambda folder: folder, "is a folder"),
        (lambda folder: text(folder / "seven.png"), "cannot be read as an image"),
        (lambda folder: animated(folder / "two.gif"), "has 2 frames"),
        (lambda folder: picture(folder / "big.png", "1", (8000, 8000)), "more than 50 megapixels"),
        (lambda folder: picture(folder / "blank.png", "L", (40, 40)), "is blank"),
        (lambda folder: picture(folder / "float.tiff", "F", (40, 40)), "pixels of the kind 'F'"),
    ],
)
def test_a_bad_image_is_refused_in_one_sentence(run, tmp_path, make, sentence):
    assert sentence in refusal("classify", run, make(tmp_path), "--passes", 1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "--data", "svhn", "--out", "OUT"], "there is no data set 'svhn'"),
        (["train", "--model", "rnn", "--out", "OUT"], "there is no model 'rnn'"),
        (["train", "--epochs", 0, "--out", "OUT"], "epochs of a TrainConfig must be a whole number of at least 1"),
        (["train", "--validation", 0.9999, "--out", "OUT"], "leaves none to train on"),
        (["train", "--out", "RUN", "--resume", "--overwrite"], "not both"),
        (["reproduce", "--out", "OUT", "--resume", "--overwrite"], "not both"),
        (["train", "--out", "RUN"], "already holds a run"),
        (["train", "--out", "RUN", "--resume", "--epochs", 9], "holds a run of another configuration"),
        (["train", "--out", "OUT", "--resume"], "holds no run"),
        (["evaluate", "OUT"], "holds no run"),
        (["evaluate", "RUN", "--passes", "0,4"], "must be a whole number of at least 1, got 0"),
        (["evaluate", "RUN", "--passes", "four"], "whole numbers separated by commas"),
        (["evaluate", "RUN", "--rule", "often"], "--rule must be fixed or certified, got 'often'"),
        (["evaluate", "RUN", "--rule", "certified", "--error", 2], "must be a number above 0 and below 1, got 2"),
        (["evaluate", "RUN", "--rule", "certified", "--limit", 4], "must be a whole number of at least 16, got 4"),
        (["evaluate", "RUN", "--rule", "certified", "--against", 0], "must be a whole number of at least 1, got 0"),
        (["evaluate", "RUN", "--rule", "certified", "--passes", 4], "--passes requires --rule fixed"),
        (["evaluate", "RUN", "--error", 0.1], "--error requires --rule certified"),
        (["evaluate", "RUN", "--limit", 64], "--limit requires --rule certified"),
        (["evaluate", "RUN", "--passes", 4, "--against", 64], "--against requires --rule certified"),
        (["evaluate", "OUT", "--rule", "certified"], "holds no run"),
        (["classify", "OUT", "x.png"], "holds no run"),
        (["classify", "RUN", "x.png", "--passes", 7, "--error", 0.1], "--passes fixes the number of passes"),
        (["classify", "RUN", "x.png", "--passes", 7, "--limit", 64], "choose one"),
        (["classify", "RUN", "x.png", "--error", 0], "must be a number above 0 and below 1, got 0"),
        (["classify", "RUN", "x.png", "--limit", 4], "must be a whole number of at least 16, got 4"),
        (["classify", "RUN", "x.png", "--passes", 0], "must be a whole number of at least 1, got 0"),
        (["reproduce", "imagenet", "--out", "OUT"], "there is no recipe 'imagenet'; choose one of mnist-5k-cnn"),
        (["reproduce", "--schedule", "fast", "--out", "OUT"], 'the schedule of a recipe is "short" or "paper"'),
        (["reproduce", "--hours", 0, "--out", "OUT"], "--hours takes a number above 0"),
        (["reproduce", "--hours", "inf", "--out", "OUT"], "--hours takes a number above 0"),
        (["reproduce", "--hours", "nan", "--out", "OUT"], "--hours takes a number above 0"),
        (["reproduce", "--hours", 1e-5, "--out", "OUT"], "give more hours"),
        (["reproduce", "--passes", "1,x", "--out", "OUT"], "whole numbers separated by commas"),
        (["data", "fetch", "svhn"], "no data set 'svhn'"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence_and_write_nothing(run, tmp_path, arguments, sentence):
    before = sorted(run.iterdir())
    assert sentence in refusal(*({"OUT": tmp_path / "out", "RUN": run}.get(a, a) for a in arguments))
    assert not (tmp_path / "out").exists()
    assert sorted(run.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["foo"], "apac: no such command 'foo'; see apac --help."),
        (["train"], "apac: missing option '--out'; see apac train --help."),
        (["train", "--out", "x", "--nope"], "apac: no such option: --nope"),
        (["train", "--out", "x", "--epochs", "abc"], "apac: invalid value for '--epochs'"),
        (["evaluate", "nowhere"], "apac: nowhere holds no run"),
        ([], ""),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_sentence(arguments, sentence, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["apac", *arguments])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    error = capsys.readouterr().err.strip()
    assert error.startswith(sentence)
    assert len(error.splitlines()) <= 1


def test_a_killed_training_goes_on_to_the_same_weights(tmp_path):
    """Killed by SIGKILL, which nothing can handle, in the middle of an epoch."""
    config = apac.TrainConfig(epochs=2, batch=200, seed=6)
    code = (
        "import sys, torch, apac\nfrom apac.training import checkpoint\n"
        "torch.set_num_threads(1)\ncheckpoint.SECONDS_BETWEEN = 0.0\n"
        "apac.train(apac.TrainConfig(epochs=2, batch=200, seed=6), sys.argv[1])\n"
    )
    out = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", code, str(out)])
    while not (out / "checkpoint.safetensors").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    resumed, whole = apac.train(config, out, resume=True), apac.train(config)
    for name, tensor in whole.network.state_dict().items():
        assert torch.equal(tensor, resumed.network.state_dict()[name])


def test_ctrl_c_keeps_a_checkpoint_and_says_how_to_go_on(tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "apac", "train", "--out", str(out), "--epochs", "40", "--batch", "100"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:  # wait until it trains
        if line.startswith("training"):
            break
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stdout == ""
    last = stderr.strip().splitlines()[-1]
    assert re.match(r"apac: stopped in epoch \d+ of 40, and its state is kept; go on with: ", last)
    assert last.endswith(f"apac train --resume --out {shlex.quote(str(out))}")
    assert "Traceback" not in stderr
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint.safetensors", "run.json"]
    assert "is not finished" in refusal("evaluate", out)
