"""A run on disk: stored, loaded, resumed, replaced; and the messages for damaged folders."""

from __future__ import annotations

import errno
import json
import shutil
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from torch import nn

import apac
from apac.runs import checkpointer, classified, file_classifier, folder, storage
from apac.runs import train as training
from apac.runs.folder import RunSettings, checkpoint_path, read_settings, scores_path
from apac.training.checkpoint import to_tensors
from apac.training.loop import EpochRecord
from small_training import fresh, weights_of
from torch_items import Items

CONFIG = apac.TrainConfig(epochs=1, batch_size=40, seed=1)


def train(small, out=None, *, config=CONFIG, **options):
    return apac.train("mnist-cnn", small, config=config, out=out, **options)


def test_load_returns_what_train_returned(small, tmp_path):
    made = train(small, tmp_path / "run")
    loaded = apac.load(tmp_path / "run")
    assert torch.equal(weights_of(made.network), weights_of(loaded.network))
    for name in ("settings", "classes", "image_shape", "history", "versions", "folder"):
        assert getattr(made, name) == getattr(loaded, name)
    assert repr(made) == repr(loaded)
    assert "\n" not in repr(made)


def test_a_run_stores_its_deformation_network_normalization_seed_versions_and_history(trained):
    payload = json.loads((trained / "run.json").read_text())
    assert apac.Deformation.from_json(payload["deformation"]) == apac.presets.mnist()
    assert (payload["network"], payload["data"], payload["config"]["seed"]) == ("mnist-cnn", "mnist-5k", 1)
    assert payload["normalization"] == "scaling"
    assert payload["versions"]["torch"] == version("torch")
    assert [epoch["epoch"] for epoch in payload["history"]] == [1]
    assert sorted(path.name for path in trained.iterdir()) == ["run.json", "weights.safetensors"]


def test_its_classifier_has_the_deformation_of_the_training(trained):
    run = apac.load(trained)
    classifier = run.classifier(apac.FixedPasses(4))
    assert classifier.deformation == run.deformation
    assert not run.network.training
    decision = classifier.decide(run.normalize(torch.zeros(2, 1, 28, 28, dtype=torch.uint8)))
    assert decision.passes.tolist() == [4, 4]
    assert run.classifier().rule == apac.Certified()
    with pytest.raises(apac.InputError, match=r"got torch.float32 \(2, 3, 28, 28\)"):
        run.normalize(torch.zeros(2, 3, 28, 28))
    with pytest.raises(apac.InputError, match=r"takes images of shape \(N, 1, 28, 28\), got \(2, 3, 28, 28\)"):
        run.normalize(torch.zeros(2, 3, 28, 28, dtype=torch.uint8))


def test_a_run_without_deformation_takes_one_pass(trained):
    assert replace(apac.load(trained), deformation=apac.Compose()).classifier().rule == apac.FixedPasses(1)


def test_image_files_are_classified_and_unreadable_ones_listed(trained, tmp_path, digits):
    run = apac.load(trained)
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    Image.fromarray((255 * (1 - digits[0][0, 0])).byte().numpy()).resize((90, 90)).save(good)
    bad.write_bytes(b"")
    result = run.classify([str(good), bad, good], apac.FixedPasses(4), seed=3)
    assert result.paths == (good, good)
    assert len(result.notes) == 2 and any("resized" in note for note in result.notes[0])
    assert list(result.unreadable) == [bad] and "is empty" in result.unreadable[bad]
    assert result.decision.passes.tolist() == [4, 4]
    assert result.labels == tuple(run.classes[label] for label in result.decision.labels.tolist())
    assert run.classify(good).paths == (good,)  # a single path
    phone = tmp_path / "IMG_1.heic"
    phone.write_bytes(bytes(100))
    (tmp_path / "notes.txt").write_text("text")
    assert list(run.classify(tmp_path).unreadable) == [phone, bad]  # a folder
    nothing = run.classify([bad])
    assert nothing.labels == () and nothing.decision.labels.shape == (0,)


def test_a_folder_that_is_no_path_is_rejected(small):
    with pytest.raises(apac.InputError, match=r"folder must be a path.*, got 3"):
        apac.load(3)  # type: ignore[arg-type]
    with pytest.raises(apac.InputError, match="out must be a path"):
        train(small, 3)


def test_a_folder_that_holds_a_run_is_rejected_resumed_or_overwritten(copy, small):
    before = (copy / "weights.safetensors").read_bytes()
    with pytest.raises(apac.InputError, match="already holds a run; continue it with resume=True, replace it with"):
        train(small, copy)
    with pytest.raises(apac.InputError, match=r"not both"):
        train(small, copy, resume=True, overwrite=True)
    assert train(small, copy, resume=True).history == apac.load(copy).history  # complete: nothing to do
    assert (copy / "weights.safetensors").read_bytes() == before
    with pytest.raises(apac.InputError, match=r"a run with other settings \(seed 1, not 9\)"):
        train(small, copy, config=replace(CONFIG, seed=9), resume=True)
    with pytest.raises(apac.InputError, match=r"a run with other settings \(another deformation\)"):
        train(small, copy, deformation=apac.Compose(), resume=True)
    train(small, copy, config=replace(CONFIG, seed=9), overwrite=True)
    assert read_settings(copy).config.seed == 9


def test_settings_name_every_difference():
    ours = RunSettings("mnist-cnn", "mnist", apac.Compose(), CONFIG)
    theirs = RunSettings(None, "cifar10", apac.Flip(), replace(CONFIG, epochs=5, on_unreadable="skip"))
    expected = "network mnist-cnn, not None; data mnist, not cifar10; epochs 1, not 5; another deformation"
    assert ours.differences(theirs) == expected


def no_training(state, *arguments, **options):
    state.history.append(EpochRecord(1, 0.1, 1.0, None, 0.0))


def test_training_again_removes_the_scores_of_the_earlier_run_and_resuming_keeps_them(copy, small, monkeypatch):
    kept = scores_path(copy) / "0123456789abcdef-64.safetensors"
    kept.parent.mkdir()
    kept.write_bytes(b"of the earlier network")
    train(small, copy, resume=True)
    assert kept.exists()
    monkeypatch.setattr(training, "run_epochs", no_training)
    train(small, copy, overwrite=True)
    assert not scores_path(copy).exists()
    assert apac.load(copy).history[0].loss == 1.0


def refuse(*arguments, **options):
    raise apac.InputError("no source has it")


def test_a_training_that_fails_before_its_first_checkpoint_leaves_no_trace(small, tmp_path, monkeypatch):
    with pytest.raises(apac.TrainingError, match="diverged"):
        train(small, tmp_path / "run", config=replace(CONFIG, learning_rate=1e9))
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr("apac.data.load", refuse)
    with pytest.raises(apac.InputError, match="no source"):
        train("mnist", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_overwriting_changes_nothing_until_the_data_are_loaded(copy, monkeypatch):
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    monkeypatch.setattr("apac.data.load", refuse)
    with pytest.raises(apac.InputError, match="no source"):
        train("mnist-5k", copy, overwrite=True)
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


def test_the_checkpoint_of_another_training_is_not_used(trained, small, tmp_path):
    other = replace(CONFIG, seed=8).resolve("mnist-cnn", "mnist-5k")
    storage.write_tensors(checkpoint_path(tmp_path), *to_tensors(fresh(other), other))
    made = train(small, tmp_path)
    assert torch.equal(weights_of(made.network), weights_of(apac.load(trained).network))


def test_a_killed_training_resumes_to_the_same_result(trained, small, tmp_path, monkeypatch):
    """Killed after the fourth step: no handler runs, and only the checkpoint of an earlier step exists."""

    class Kill(BaseException):
        pass

    def save_each_step_then_die(self, state):
        if state.step == 4:
            raise Kill
        self.save(state)

    with monkeypatch.context() as patch:
        patch.setattr(checkpointer.Checkpointer, "__call__", save_each_step_then_die)
        with pytest.raises(Kill):
            train(small, tmp_path / "run")
    checkpoint = checkpoint_path(tmp_path / "run")
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(apac.StorageError, match="damaged or truncated; start again with overwrite=True"):
        train(small, tmp_path / "run", resume=True)
    checkpoint.write_bytes(whole)
    resumed = train(small, tmp_path / "run", resume=True)
    assert torch.equal(weights_of(resumed.network), weights_of(apac.load(trained).network))


def test_a_checkpoint_is_saved_every_30_seconds_within_an_epoch_too(tmp_path, monkeypatch):
    clock = iter([0.0, 10.0, 31.0, 31.0, 40.0])
    monkeypatch.setattr(checkpointer, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    config = CONFIG.resolve("mnist-cnn", "mnist")
    save, state = checkpointer.Checkpointer(tmp_path / "c", config, None), fresh(config)
    for exists in (False, True, False):
        save(state)
        assert (tmp_path / "c").exists() == exists
        (tmp_path / "c").unlink(missing_ok=True)


def test_a_full_disk_leaves_the_existing_files(copy, monkeypatch):
    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(apac.StorageError, match=r"could not write .*: No space left on device; an existing file"):
        storage.write_json(copy / "run.json", {})
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


def change(**values):
    def broken(folder: Path) -> None:
        payload = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(payload | values))

    return broken


def truncate(name: str):
    def broken(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return broken


DAMAGED = "are damaged or do not match each other"


LIBRARY_FUNCTIONS = ("os:system", "shutil:rmtree", "numpy:full", "apac.models.resnet:resnet", "own_networks:Flatten")


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (shutil.rmtree, "holds no run"),
        (lambda folder: (folder / "weights.safetensors").unlink(), "could not read .*weights.safetensors"),
        (truncate("run.json"), "damaged or truncated"),
        (truncate("weights.safetensors"), "damaged or truncated"),
        (lambda folder: (folder / "run.json").write_text("[]"), "has format None, and this version of apac reads"),
        (lambda folder: (folder / "run.json").write_text('{"format": 2, "complete": true}'), "is damaged; train it"),
        (change(history=5), DAMAGED),
        (change(history=[{"a": 1}]), DAMAGED),
        (change(classes=["a"]), DAMAGED),
        (change(image_shape=[1, 2]), "must be three integers"),
        (change(network="mnist-mlp"), DAMAGED),
        (change(format=99), "has format 99, and this version of apac reads format 2"),
        (change(complete=False), "is not finished"),
        (change(config={"color": 1}), "is damaged"),
        (change(normalization="log"), "no normalization 'log'"),
        (change(network="rnn"), "there is no network 'rnn'"),
        (change(network=None), "trained from a module; pass a module of the same architecture as network="),
        (change(network="never_imported.module:build"), "import never_imported.module first, or pass network="),
        *((change(network=path), f"{path} is not called: .* pass network= in Python") for path in LIBRARY_FUNCTIONS),
        (change(network="own_networks:nn"), "has no function 'nn'"),
    ],
)
def test_a_broken_run_folder_is_rejected_in_one_sentence(copy, broken, sentence):
    import own_networks  # noqa: F401

    broken(copy)
    with pytest.raises(apac.ApacError, match=sentence) as caught:
        apac.load(copy)
    assert "\n" not in str(caught.value)
    assert "never_imported" not in sys.modules


def test_a_network_by_import_path_is_built_only_if_its_module_is_imported(tmp_path, monkeypatch):
    (tmp_path / "my_networks.py").write_text(
        "from torch import nn\n\n\ndef build(image_shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(9, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    data = torch.rand(20, 1, 3, 3), torch.arange(20) % 2
    made = apac.train("my_networks:build", data, apac.Flip(), config=CONFIG, out=tmp_path / "run")
    assert torch.equal(weights_of(apac.load(tmp_path / "run").network), weights_of(made.network))
    monkeypatch.delitem(sys.modules, "my_networks")
    with pytest.raises(apac.InputError, match="import my_networks first, or pass network="):
        apac.load(tmp_path / "run")
    own = nn.Sequential(nn.Flatten(), nn.Linear(9, 2))
    assert apac.load(tmp_path / "run", network=own).network is own
    assert torch.equal(weights_of(own), weights_of(made.network))


def test_a_file_in_place_of_the_folder_is_rejected(small, tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(apac.InputError, match="is a file; a run needs a folder"):
        train(small, tmp_path / "run")


def test_a_module_that_does_not_fit_is_blamed_and_not_the_files(copy):
    with pytest.raises(apac.InputError, match=r"network=, a Linear, does not fit the weights in .*; pass a module of"):
        apac.load(copy, network=nn.Linear(3, 3))
    with pytest.raises(apac.InputError, match=r"network= must be a torch.nn.Module, got 'own_networks:linear'"):
        apac.load(copy, "own_networks:linear")  # type: ignore[arg-type]


def test_many_files_are_decided_in_batches(trained, tmp_path, digits, monkeypatch):
    for number, image in enumerate(digits[0][:7, 0]):
        Image.fromarray((255 * image).byte().numpy()).save(tmp_path / f"{number}.png")
    (tmp_path / "3.png").write_bytes(b"")
    run, rule = apac.load(trained), apac.FixedPasses(4)
    together = run.classify(tmp_path, rule)
    monkeypatch.setattr(file_classifier, "BATCH_BYTES", 2 * 4 * 28**2)  # two images
    read: list[int] = []

    def read_images(files, *arguments, **options):
        read.append(len(files))
        return classified.read_images(files, *arguments, **options)

    monkeypatch.setattr(file_classifier, "read_images", read_images)
    reported: list[tuple[int, int]] = []
    batches = run.classify(tmp_path, rule, progress=lambda task, done, total, note="": reported.append((done, total)))
    assert read == [2, 2, 2, 1]
    assert (batches.paths, batches.notes, batches.unreadable) == (together.paths, together.notes, together.unreadable)
    assert batches.labels == together.labels
    # Engines for few and for many images differ by what promise 2 allows.
    torch.testing.assert_close(batches.decision.log_scores, together.decision.log_scores, rtol=0, atol=1e-4)
    assert reported == sorted(reported) and reported[-1] == (7, 7)


def test_a_kill_while_a_run_is_replaced_leaves_no_checkpoint_beside_the_new_settings(copy, small, monkeypatch):
    checkpoint_path(copy).write_bytes(b"of the earlier training")

    def end(folder: Path) -> None:
        raise SystemExit

    monkeypatch.setattr(folder, "_discard_state", end)
    with pytest.raises(SystemExit):
        folder.claim(copy, RunSettings("mnist-cnn", "mnist-5k", apac.Flip(), CONFIG), "digest", resume=False)
    assert read_settings(copy).deformation == apac.Flip()
    assert not checkpoint_path(copy).exists()


def test_classes_of_the_same_name_are_numbered():
    class Birds(Items):
        classes = ("crane", "crane", "dog")

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return self.images[index], index % 3

    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    run = apac.train(network, Birds(), apac.Flip(), config=replace(CONFIG, batch_size=4))
    assert run.classes == ("crane (0)", "crane (1)", "dog")
