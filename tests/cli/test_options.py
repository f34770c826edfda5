"""Options of all commands, and errors that end in one sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import torch
import typer
from typer.testing import CliRunner

import apac
from apac.cli import app
from apac.cli.errors import handle_errors, in_options


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path
    torch.set_num_threads(1)


def apac_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "apac", *arguments], capture_output=True, text=True, check=False)


def raising(error: BaseException) -> Callable[[], None]:
    def command() -> NoReturn:
        raise error

    return handle_errors(command)


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (apac.InputError("the size is wrong."), 2, "apac: the size is wrong.\n"),
        (apac.TrainingError("the loss is NaN."), 2, "apac: the loss is NaN.\n"),
        (apac.StorageError("the file is damaged."), 2, "apac: the file is damaged.\n"),
        (FileNotFoundError(2, "No such file or directory", "x.png"), 2, "apac: No such file or directory: x.png.\n"),
        (KeyboardInterrupt(), 130, "apac: interrupted; there are no incomplete files.\n"),
        (KeyboardInterrupt("stopped; continue with x."), 130, "apac: stopped; continue with x.\n"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_expected_errors_end_in_one_sentence_and_an_exit_status(error, status, sentence, capsys):
    with pytest.raises(typer.Exit) as ended:
        raising(error)()
    assert ended.value.exit_code == status
    assert capsys.readouterr().err == sentence


def test_a_defect_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        raising(ZeroDivisionError())()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("add resume=True or overwrite=True.", "add --resume or --overwrite."),
        ('skip them with on_unreadable="skip".', "skip them with --on-unreadable skip."),
        ("train with validation_fraction=0, or add images.", "train with --validation-fraction 0, or add images."),
        ("the learning_rate of a TrainConfig must be a number above 0.", "--learning-rate must be a number above 0."),
        ("the error of a Certified must be a number above 0.", "--error must be a number above 0."),
        ("the passes of a FixedPasses must be an integer.", "--passes must be an integer."),
        ("the std of an Amplitude must be a number.", "the std of an Amplitude must be a number."),
        ('schedule must be "exponential" or "cosine".', '--schedule must be "exponential" or "cosine".'),
        ("tied=0.5 is supported for mnist-mlp only.", "--tied 0.5 is supported for mnist-mlp only."),
        (
            "the network is built by a.b:c: import a.b first, or pass network=.",
            "the network is built by a.b:c; start the command with apac --import a.b.",
        ),
        ("it is not called; pass network= instead.", "it is not called; load the run from Python with apac.load."),
        (
            "no default; pass one, or Compose() for none.",
            "no default; choose one by --deformation, or --plain for none.",
        ),
        ("if it was moved, pass data=.", "if it was moved, give a folder by --data."),
        ("omit whitened=True.", "omit --whitened."),
        ("or pass another folder as out=.", "or choose another folder by --out."),
        ("evaluate it with apac.evaluate.", "evaluate it from Python with apac.evaluate."),
        ("omit normalization='zca', or pass uint8.", "omit --normalization zca, or pass uint8."),
        ("batch_size=2 leaves none of its virtual samples.", "--batch-size 2 leaves none of its virtual samples."),
        ("of a folder with size=16 or more.", "of a folder with --size 16 or more."),
        ("it held out no images (validation_fraction=0).", "it held out no images (--validation-fraction 0)."),
        ("runs/size=32 holds no run.", "runs/size=32 holds no run."),
        ("size=32 holds no run.", "size=32 holds no run."),
        ("size=32 is a file; a run needs a folder.", "size=32 is a file; a run needs a folder."),
        ("size=32 is for the images of a folder.", "--size 32 is for the images of a folder."),
        ("there is no file seed=3.png.", "there is no file seed=3.png."),
        ("its rule is FixedPasses(passes=4).", "its rule is FixedPasses(passes=4)."),
        ("Homography(std=0.1) with epsilon=1 is unchanged.", "Homography(std=0.1) with epsilon=1 is unchanged."),
    ],
)
def test_arguments_in_messages_of_the_library_become_options(message, expected):
    assert in_options(message).rstrip(".") == expected.rstrip(".")


def test_the_number_of_threads_is_set_for_the_process(tmp_path, monkeypatch):
    result = CliRunner().invoke(app, ["--threads", "2", "data", "path"])
    assert result.exit_code == 0
    assert torch.get_num_threads() == 2
    assert CliRunner().invoke(app, ["--threads", "0", "data", "path"]).exit_code == 2


def test_a_root_option_after_the_command_is_rejected_with_a_hint():
    result = apac_command("data", "path", "--threads", "2")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "apac: no such option: --threads; --threads precedes the command, see apac --help.\n"


def test_a_module_of_the_current_folder_is_imported_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my_deformations.py").write_text("print('imported')\n")
    try:
        result = CliRunner().invoke(app, ["--import", "my_deformations", "--import", "json", "data", "path"])
        assert result.exit_code == 0
        assert result.stdout.startswith("imported\n")
    finally:
        sys.modules.pop("my_deformations", None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("1 / 0", "ZeroDivisionError: division by zero"), ("import nothing_here", "ModuleNotFoundError: No module named")],
)
def test_a_module_that_cannot_be_imported_is_reported_in_one_sentence(text, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("broken_module.py").write_text(f"{text}\n")
    result = CliRunner().invoke(app, ["--import", "broken_module", "data", "path"])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"apac: --import broken_module failed: {reason}")
    assert result.stderr.count("\n") == 1


def test_waiting_threads_spin_for_a_short_time_by_default(monkeypatch):
    code = """if True:
        import os, sys
        from apac import cli
        sys.argv = ["apac", "--version"]
        try:
            cli.main()
        except SystemExit:
            print(os.environ.get("GOMP_SPINCOUNT"))
    """
    for given, expected in (({}, "1000"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None"), ({"GOMP_SPINCOUNT": "7"}, "7")):
        removed = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
        environment = {name: value for name, value in os.environ.items() if name not in removed} | given
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == expected


def test_importing_the_library_changes_no_environment():
    code = "import os; before = dict(os.environ); import apac, apac.cli; print(before == dict(os.environ))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_ctrl_c_exits_with_130_and_one_sentence(tmp_path):
    code = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"
    (tmp_path / "slow_module.py").write_text(code)
    command = [sys.executable, "-m", "apac", "--import", "slow_module", "data", "path"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "apac: interrupted; there are no incomplete files.\n"
