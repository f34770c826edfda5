"""apac classify."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import torch
from PIL import Image

import apac
from apac.data.image_file import read_image
from commands import call, refusal, succeed


def test_classify_continues_until_the_answer_is_settled_by_default(run, digit):
    path, label = digit
    result = succeed("classify", run, path)
    assert re.search(rf": {label}, probability .+ \(settled after \d+ passes; \d .+, \d .+\)", result.stdout)
    passes, fewer = (
        int(re.findall(r"settled after (\d+) passes", output)[0])
        for output in (result.stdout, succeed("classify", run, path, "--error", 0.3).stdout)
    )
    assert passes % 16 == 0
    assert fewer < passes
    assert re.search(
        rf": {label}, probability .+ \(after 7 passes; ", call("classify", run, path, "--passes", 7).stdout
    )


def test_classify_prints_that_an_answer_is_not_settled(run, tmp_path):
    cross = np.full((60, 60), 255, dtype=np.uint8)  # no digit at all
    cross[27:33, 10:50] = cross[10:50, 27:33] = 0
    Image.fromarray(cross).save(tmp_path / "cross.png")
    result = succeed("classify", run, tmp_path / "cross.png", "--limit", 16)
    assert re.search(r"cross.png: \d, probability .+ \(not settled after 16 passes; ", result.stdout)


def test_json_has_the_reason_for_stopping_and_the_margin(run, digit):
    path, label = digit
    runs = {
        "certified": succeed("classify", run, path, "--json"),
        "limit": succeed("classify", run, path, "--limit", 16, "--json"),
        "fixed": succeed("classify", run, path, "--passes", 7, "--json"),
    }
    for why, result in runs.items():
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


def test_probabilities_are_the_normalized_means_in_text_csv_and_json(run, digit, tmp_path):
    for combine in ("product", "sum"):
        options = (run, digit[0], "--passes", 8, "--combine", combine)
        (answer,) = json.loads(succeed("classify", *options, "--json", "--csv", tmp_path / "d.csv").stdout)
        loaded = apac.load(run)
        rule = apac.FixedPasses(8)
        decision = loaded.classify(digit[0], rule, combine=combine).decision
        means = (
            scipy.special.softmax(decision.log_scores[0]) if combine == "product" else decision.mean_probabilities[0]
        )
        assert list(answer["probabilities"].values()) == pytest.approx(means.tolist(), abs=1e-5)
        assert sum(answer["probabilities"].values()) == pytest.approx(1)
        assert (answer["combine"], answer["plain"]) == (combine, False)
        assert (
            answer["probability"] == answer["probabilities"][answer["label"]] == max(answer["probabilities"].values())
        )
        (line,) = csv.DictReader((tmp_path / "d.csv").read_text().splitlines())
        assert [float(line[f"probability_{c}"]) for c in loaded.classes] == list(answer["probabilities"].values())
        text = succeed("classify", *options).stdout
        best, second = sorted(answer["probabilities"].items(), key=lambda pair: -pair[1])[:2]
        shown = re.search(r"probability (?:> )?([\d.]+) \(after 8 passes; (\d) (?:< )?([\d.]+)", text)
        assert shown is not None
        assert shown[2] == second[0]
        assert [float(shown[1]), float(shown[3])] == pytest.approx([best[1], second[1]], abs=0.005)


def test_plain_is_one_pass_of_the_undeformed_image(run, digit):
    (answer,) = json.loads(succeed("classify", run, digit[0], "--plain", "--json").stdout)
    loaded = apac.load(run)
    image, _ = read_image(digit[0], (1, 28, 28), digit=True)
    with torch.no_grad():
        expected = loaded.network(loaded.normalize(image[None])).softmax(1)[0]
    # float32 logits of one image and of a batch
    assert list(answer["probabilities"].values()) == pytest.approx(expected.tolist(), abs=1e-4)
    assert (answer["passes"], answer["plain"]) == (1, True)
    assert "(plain prediction; " in succeed("classify", run, digit[0], "--plain").stdout
    assert "omit --passes" in refusal("classify", run, digit[0], "--plain", "--passes", 4)
    assert "--combine must be product or sum" in refusal("classify", run, digit[0], "--combine", "mean")


def test_a_folder_stands_for_the_images_in_it_which_are_told_apart_by_their_paths(run, digit, tmp_path):
    files = [tmp_path / "a" / "1.png", tmp_path / "b" / "c" / "1.png"]
    for path in (*files, tmp_path / "b" / ".hidden.png", tmp_path / "b" / "notes.txt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(digit[0].read_bytes())
    answers = json.loads(succeed("classify", run, tmp_path, digit[0], "--plain", "--json").stdout)
    assert [answer["image"] for answer in answers] == [*map(str, files), str(digit[0])]


def test_classify_prints_how_it_prepared_an_image(run, digit):
    path, label = digit
    result = succeed("classify", run, path, "--passes", 32)
    assert re.search(
        rf"{re.escape(str(path))}: {label}, probability .+ \(after 32 passes; \d .+, \d .+\)",
        result.stdout,
    )
    assert "inverted" in result.stdout
    assert "resized from 300 × 260" in result.stdout


def test_classify_prints_json(run, digit):
    path, label = digit
    answers = json.loads(call("classify", run, path, path, "--passes", 16, "--json").stdout)
    assert len(answers) == 2
    assert answers[0]["label"] == label
    assert answers[0]["passes"] == 16
    assert answers[0]["standard_error"] > 0
    assert answers[0]["mean_log_probability"] == max(answers[0]["log_scores"].values())
    # Two equal images of one batch: the rounding of a matrix product may depend on the row.
    for name, value in answers[0].items():
        assert answers[1][name] == (value if isinstance(value, list) else pytest.approx(value, abs=1e-4))
    single = json.loads(call("classify", run, path, "--passes", 1, "--json").stdout)
    assert single[0]["standard_error"] is None


def test_json_is_printed_even_if_no_image_can_be_read(run, tmp_path):
    result = call("classify", run, tmp_path / "none.png", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout) == []


def test_classify_decides_the_readable_images_and_names_the_unreadable(run, digit, tmp_path):
    (tmp_path / "empty.png").touch()
    result = call("classify", run, tmp_path / "empty.png", digit[0], "--passes", 4)
    assert result.exit_code == 2
    assert str(digit[0]) in result.stdout
    assert re.fullmatch(r"apac: .*empty.png is empty.*", result.stderr.splitlines()[-1])


def test_a_closed_pipe_ends_quietly(run, digit, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", "")  # the output is written at the end of the process
    command = shlex.join([sys.executable, "-m", "apac", "classify", str(run), str(digit[0]), "--passes", "1"])
    done = subprocess.run(f"{command} | head -c 0", shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == "deciding: 100 %\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_the_output_leaves_one_sentence(run, digit, tmp_path, monkeypatch, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    csv = tmp_path / "decisions.csv"
    command = [sys.executable, "-m", "apac", "classify", str(run), str(digit[0]), "--passes", "1", "--csv", str(csv)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 2
        sentence = "apac: the output is not complete: No space left on device; free some space, and repeat the command."
        assert done.stderr.splitlines()[-1] == sentence
        assert "Traceback" not in done.stderr and csv.exists()
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, text=True, check=False)
        assert done.returncode == 0 and str(digit[0]) in done.stdout  # only the progress is lost
        refused = subprocess.run([*command[:4], str(tmp_path)], stderr=full, check=False)
        assert refused.returncode == 2  # of bad input, whose sentence is lost


def test_a_closed_pipe_does_not_keep_results_from_being_written(run, digit, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    out = tmp_path / "decisions.csv"
    options = ["classify", str(run), str(digit[0]), "--passes", "1", "--csv", str(out)]
    reading, writing = os.pipe()
    os.close(reading)  # before the first line
    done = subprocess.run(
        [sys.executable, "-m", "apac", *options], stdout=writing, stderr=writing, check=False, timeout=120
    )
    os.close(writing)
    assert done.returncode == 0
    assert out.read_text().startswith("image,")


def test_without_an_output_the_work_is_done(run, digit, tmp_path):
    out = tmp_path / "decisions.csv"
    command = [sys.executable, "-m", "apac", "classify", str(run), str(digit[0]), "--passes", "1", "--csv", str(out)]
    subprocess.run(f"{shlex.join(command)} >&- 2>&-", shell=True, check=True)
    assert out.exists()


def test_lines_are_written_at_once_if_python_does_not_buffer(tmp_path):
    script = "import os, typer; from apac.cli import errors; app = typer.Typer()\n"
    script += "@app.command()\ndef say():\n    print('said')\n    os._exit(0)\nerrors.run_app(app)"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "said\n"


@pytest.mark.parametrize("name", ["@list.txt", "*.png", "-"])
def test_lists_and_patterns_need_an_output_folder(name, run):
    assert "lists of files (@list, -) and patterns need --out" in refusal("classify", run, name)


def test_a_folder_is_no_csv_file(run, digit, tmp_path):
    assert f"{tmp_path} is not a regular file" in refusal("classify", run, digit[0], "--csv", tmp_path)


def picture(path: Path, mode: str, size: tuple[int, int]) -> Path:
    Image.new(mode, size).save(path)
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
        (lambda folder: folder, "has no image files"),
        (lambda folder: text(folder / "seven.png"), "cannot be read as an image"),
        (lambda folder: animated(folder / "two.gif"), "has several frames"),
        (lambda folder: picture(folder / "big.png", "1", (8000, 8000)), "more than 40 megapixels"),
        (lambda folder: picture(folder / "blank.png", "L", (40, 40)), "shows no digit"),
        (lambda folder: picture(folder / "float.tiff", "F", (40, 40)), "pixel mode 'F'"),
    ],
)
def test_an_unreadable_image_is_rejected_in_one_sentence(run, tmp_path, make, sentence):
    assert sentence in refusal("classify", run, make(tmp_path), "--passes", 1)
