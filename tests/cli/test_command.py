"""The command line: help, version, and one-sentence usage errors."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from apac import cli
from commands import call, refusal, succeed


@pytest.mark.parametrize(
    "command",
    [(), ("train",), ("evaluate",), ("classify",), ("preview",), ("reproduce",), ("data", "fetch"), ("data", "path")],
)
def test_every_command_has_help_with_an_example(command):
    result = call(*command, "--help")
    assert result.exit_code == 0
    assert re.search(r"(Example|Get started).*apac " + " ".join(command), re.sub(r"\s+", " ", result.stdout))


def test_the_version_is_printed():
    assert re.fullmatch(r"apac \d+\.\d+\.\d+", call("--version").stdout.strip())


def test_data_path_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("APAC_DATA", str(tmp_path))
    assert succeed("data", "path").stdout.strip() == str(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "--data", "svhn", "--out", "OUT"], "there is no data set 'svhn'"),
        (["train", "--network", "rnn", "--out", "OUT"], "there is no network 'rnn'"),
        (["train", "--epochs", 0, "--out", "OUT"], "--epochs must be an integer of at least 1"),
        (["train", "--validation-fraction", 0.9999, "--out", "OUT"], "leaves none to train on"),
        (["train", "--out", "RUN", "--resume", "--overwrite"], "not both"),
        (["reproduce", "--out", "OUT", "--resume", "--overwrite"], "not both"),
        (["train", "--out", "RUN"], "already holds a run"),
        (["train", "--out", "RUN", "--resume", "--epochs", 9], "holds a run with other settings"),
        (["train", "--out", "OUT", "--resume"], "holds no run"),
        (["evaluate", "OUT"], "holds no run"),
        (["evaluate", "RUN", "--passes", "0,4"], "must be an integer of at least 1, got 0"),
        (["evaluate", "RUN", "--passes", "four"], "integers separated by commas"),
        (["evaluate", "RUN", "--rule", "often"], "--rule must be fixed or certified, got 'often'"),
        (["evaluate", "RUN", "--rule", "certified", "--error", 2], "must be a number above 0 and below 1, got 2"),
        (["evaluate", "RUN", "--rule", "certified", "--limit", 4], "must be an integer of at least 16, got 4"),
        (["evaluate", "RUN", "--rule", "certified", "--against", 0], "must be an integer of at least 1, got 0"),
        (["evaluate", "RUN", "--rule", "certified", "--passes", 4], "--passes requires --rule fixed"),
        (["evaluate", "RUN", "--error", 0.1], "--error requires --rule certified"),
        (["evaluate", "RUN", "--limit", 64], "--limit requires --rule certified"),
        (["evaluate", "RUN", "--passes", 4, "--against", 64], "--against requires --rule certified"),
        (["evaluate", "OUT", "--rule", "certified"], "holds no run"),
        (["classify", "OUT", "x.png"], "holds no run"),
        (["classify", "RUN", "x.png", "--passes", 7, "--error", 0.1], "--passes fixes the number of passes"),
        (["classify", "RUN", "x.png", "--passes", 7, "--limit", 64], "choose one"),
        (["classify", "RUN", "x.png", "--error", 0], "must be a number above 0 and below 1, got 0"),
        (["classify", "RUN", "x.png", "--limit", 4], "must be an integer of at least 16, got 4"),
        (["classify", "RUN", "x.png", "--passes", 0], "must be an integer of at least 1, got 0"),
        (["preview", "RUN", "--size", 20], "a run has its own size and fit; omit them"),
        (["preview", "nowhere.png"], "there is no file or folder nowhere.png"),
        (["preview", "RUN", "--out", "OUT/x.jpg"], "--out takes the name of a PNG file"),
        (["preview", "RUN", "--deformation", "gone.json"], "gone.json cannot be read: No such file or directory"),
        (["train", "--size", 64, "--out", "OUT"], "--size 64 is for the images of a folder"),
        (["train", "--size", 0, "--out", "OUT"], "--size must be an integer of at least 1"),
        (["train", "--fit", "stretch", "--out", "OUT"], '--fit must be "crop" or "pad", got'),
        (["reproduce", "imagenet", "--out", "OUT"], "there is no recipe 'imagenet'; choose one of mnist-5k-cnn"),
        (["reproduce", "--schedule", "fast", "--out", "OUT"], 'the schedule of a recipe is "short" or "paper"'),
        (["reproduce", "--hours", 0, "--out", "OUT"], "--hours takes a number above 0"),
        (["reproduce", "--hours", "inf", "--out", "OUT"], "--hours takes a number above 0"),
        (["reproduce", "--hours", "nan", "--out", "OUT"], "--hours takes a number above 0"),
        (["reproduce", "--hours", 1e-9, "--out", "OUT"], "allow more hours"),
        (["reproduce", "--passes", "1,x", "--out", "OUT"], "integers separated by commas"),
        (["data", "fetch", "svhn"], "no data set 'svhn'"),
    ],
)
def test_bad_arguments_are_rejected_in_one_sentence_and_write_nothing(
    run, tmp_path, few, arguments, sentence, monkeypatch
):
    monkeypatch.setattr("apac.training.budget.MEASURED_SECONDS", 0.0)
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
def test_a_wrong_command_line_is_rejected_in_one_sentence(arguments, sentence, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["apac", *arguments])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    error = capsys.readouterr().err.strip()
    assert error.startswith(sentence)
    assert len(error.splitlines()) <= 1


@pytest.mark.parametrize("start", ["import apac.__main__", "import runpy; runpy.run_module('apac.__main__')"])
def test_ctrl_c_while_the_command_line_is_imported_leaves_no_traceback(start):
    # A process that is started with SIGINT ignored, as by a shell's "&", would ignore it.
    code = "import os, signal, time; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += f"{start}; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (-signal.SIGINT, "", "")


def test_an_ignored_ctrl_c_stays_ignored_while_the_command_line_is_imported():
    code = "import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); import apac.__main__"
    code += "; os.kill(os.getpid(), signal.SIGINT); print('continues')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "continues\n")
