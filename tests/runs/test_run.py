"""What training leaves behind, and what a broken folder says."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import apac
from apac.data.base import Dataset
from apac.data.normalize import Scaling
from apac.randomness import generator
from apac.runs.folder import read_config, scores_of
from apac.training import checkpoint, loop

CONFIG = apac.TrainConfig("mnist-5k", "cnn", epochs=1, batch=400, seed=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "cnn"
    apac.train(CONFIG, folder)
    return folder


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def weights_of(network: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in network.parameters()])


def test_load_returns_what_train_returned(tmp_path):
    made = apac.train(CONFIG, tmp_path / "run")
    loaded = apac.load(tmp_path / "run")
    assert torch.equal(weights_of(made.network), weights_of(loaded.network))
    for name in ("config", "classes", "image_shape", "history", "versions", "folder"):
        assert getattr(made, name) == getattr(loaded, name)


def test_a_run_stores_its_deformation_network_normalization_seed_versions_and_history(folder):
    form = json.loads((folder / "run.json").read_text())
    assert apac.Deformation.from_json(form["config"]["deformation"]) == apac.presets.mnist()
    assert form["config"]["model"] == "cnn"
    assert form["config"]["seed"] == 1
    assert form["normalization"] == "scaling"
    assert form["versions"]["torch"] == torch.__version__
    assert [epoch["epoch"] for epoch in form["history"]] == [1]
    assert sorted(path.name for path in folder.iterdir()) == ["run.json", "weights.safetensors"]


def test_its_classifier_has_the_deformation_of_the_training(folder):
    run = apac.load(folder)
    classifier = run.classifier(apac.FixedPasses(256))
    assert classifier.deformation == run.config.deformation
    assert not run.network.training
    decision = classifier.decide(run.normalize(torch.zeros(2, 1, 28, 28, dtype=torch.uint8)))
    assert decision.passes.tolist() == [256, 256]
    assert run.classifier().rule == apac.Certified()
    with pytest.raises(apac.InputError, match=r"got torch.float32 \(2, 3, 28, 28\)"):
        run.normalize(torch.zeros(2, 3, 28, 28))
    with pytest.raises(apac.InputError, match=r"must have the shape \(N, 1, 28, 28\)"):
        classifier.decide(torch.zeros(2, 3, 28, 28))


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = apac.train(CONFIG)
    assert run.folder is None
    assert not list(tmp_path.iterdir())


def test_held_out_images_are_not_trained_on(monkeypatch):
    seen = {}

    def spy(state, config, images, labels, held_out, **options):
        seen["trained"], seen["held"] = images, held_out[0]
        state.history.append(loop.Epoch(1, 0.1, 1.0, None, 0.0))

    monkeypatch.setattr(loop, "advance", spy)
    apac.train(replace(CONFIG, validation=0.25))
    assert (len(seen["trained"]), len(seen["held"])) == (3000, 1000)
    trained = {image.numpy().tobytes() for image in seen["trained"]}
    assert not any(image.numpy().tobytes() in trained for image in seen["held"])


def test_a_folder_that_holds_a_run_is_refused_resumed_or_overwritten(copy):
    before = (copy / "weights.safetensors").read_bytes()
    with pytest.raises(
        apac.InputError, match="already holds a run; go on with it by --resume, replace it by --overwrite"
    ):
        apac.train(CONFIG, copy)
    assert apac.train(CONFIG, copy, resume=True).history == apac.load(copy).history  # complete: nothing to do
    assert (copy / "weights.safetensors").read_bytes() == before
    with pytest.raises(apac.InputError, match="a run of another configuration"):
        apac.train(replace(CONFIG, seed=9), copy, resume=True)
    apac.train(replace(CONFIG, seed=9), copy, overwrite=True)
    assert read_config(copy).seed == 9


def test_training_again_removes_the_scores_of_the_run_before_and_resuming_keeps_them(copy, monkeypatch):
    kept = scores_of(copy) / "0123456789abcdef-64.safetensors"
    kept.parent.mkdir()
    kept.write_bytes(b"of the network that was there")
    apac.train(CONFIG, copy, resume=True)
    assert kept.exists()
    monkeypatch.setattr(
        loop, "advance", lambda state, *_, **__: state.history.append(loop.Epoch(1, 0.1, 1.0, None, 0.0))
    )
    apac.train(CONFIG, copy, overwrite=True)
    assert not scores_of(copy).exists()
    assert apac.load(copy).history[0].loss == 1.0


@pytest.mark.parametrize("failure", ["no data", "diverges"])
def test_a_training_that_fails_before_its_first_checkpoint_leaves_no_trace(tmp_path, monkeypatch, failure):
    def refuse(name, progress):
        raise apac.InputError("no source gave it")

    if failure == "no data":
        monkeypatch.setattr("apac.data.load", refuse)
    with pytest.raises(apac.InputError):
        apac.train(replace(CONFIG, rate=1e9), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_overwriting_touches_nothing_until_the_data_are_there(copy, monkeypatch):
    def refuse(name, progress):
        raise apac.InputError("no source gave it")

    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    monkeypatch.setattr("apac.data.load", refuse)
    with pytest.raises(apac.InputError):
        apac.train(replace(CONFIG, seed=9), copy, overwrite=True)
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


def test_a_checkpoint_that_another_training_left_is_not_gone_on_with(folder, tmp_path):
    other = replace(CONFIG, seed=8)
    checkpoint.save(tmp_path / "checkpoint.safetensors", loop.begin(other), other)
    assert torch.equal(weights_of(apac.train(CONFIG, tmp_path).network), weights_of(apac.load(folder).network))


def test_whitening_is_fitted_on_the_images_that_are_trained_on_alone(monkeypatch):
    random = generator(0, "test", 0)
    train, test = (torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8, generator=random) for n in (40, 20))
    labels = torch.arange(40) % 10
    classes = tuple("abcdefghij")
    stub = Dataset("cifar10", train, labels, test, labels[:20], classes)
    monkeypatch.setattr("apac.data.load", lambda name, progress: stub)
    fitted = []
    monkeypatch.setattr("apac.runs.run.fit_whitening", lambda images: fitted.append(images) or Scaling())
    run = apac.train(apac.TrainConfig("cifar10", "cnn", epochs=1, batch=10, validation=0.25))
    assert len(fitted[0]) == 30
    allowed = {image.numpy().tobytes() for image in train}
    assert all(image.numpy().tobytes() in allowed for image in fitted[0])
    assert run.classes == classes


def test_a_killed_training_goes_on_to_the_same_result(folder, tmp_path, monkeypatch):
    """Killed for good after the fourth step: no handler runs, only the checkpoint of the step before is there."""

    class Kill(BaseException):
        pass

    def save_each_step_then_die(self, state):
        if state.step == 4:
            raise Kill
        checkpoint.save(self.path, state, self.config)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Checkpointer, "__call__", save_each_step_then_die)
        with pytest.raises(Kill):
            apac.train(CONFIG, tmp_path / "run")
    with pytest.raises(apac.InputError, match="is not finished; go on with it: apac train --resume --out"):
        apac.load(tmp_path / "run")
    resumed = apac.train(CONFIG, tmp_path / "run", resume=True)
    assert torch.equal(weights_of(resumed.network), weights_of(apac.load(folder).network))
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["run.json", "weights.safetensors"]


def test_a_full_disk_leaves_what_was_there(copy, monkeypatch):
    import errno

    from apac.runs import storage

    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    monkeypatch.setattr(storage.Path, "write_bytes", full)
    with pytest.raises(apac.InputError, match=r"could not write .*: No space left on device; what was there before"):
        storage.write_json(copy / "run.json", {})
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


def change(**values):
    def broken(folder: Path) -> None:
        form = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(form | values))

    return broken


def truncate(name: str):
    def broken(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return broken


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (lambda folder: shutil.rmtree(folder), "holds no run"),
        (lambda folder: (folder / "weights.safetensors").unlink(), "could not read .*weights.safetensors"),
        (truncate("run.json"), "damaged or truncated"),
        (truncate("weights.safetensors"), "damaged or truncated"),
        (lambda folder: (folder / "run.json").write_text("[]"), "another version of apac"),
        (
            lambda folder: (folder / "run.json").write_text('{"format": 1, "complete": true}'),
            "is damaged; train it again",
        ),
        (change(history=5), "do not belong together or are damaged"),
        (change(history=[{"a": 1}]), "do not belong together or are damaged"),
        (change(classes=["a"]), "do not belong together or are damaged"),
        (change(image_shape=[1, 2]), "do not belong together or are damaged"),
        (change(format=99), r"made by another version of apac \(format 99, this one reads 1\)"),
        (change(complete=False), "is not finished"),
        (lambda folder: change(config={"data": "mnist-5k", "color": 1})(folder), "is damaged"),
        (
            lambda folder: change(config=apac.TrainConfig(model="mlp").to_json())(folder),
            "do not belong together or are damaged",
        ),
        (lambda folder: change(normalization="log")(folder), "normalis"),
    ],
)
def test_a_broken_run_folder_is_refused_in_one_sentence(copy, broken, sentence):
    broken(copy)
    with pytest.raises(apac.InputError, match=sentence) as caught:
        apac.load(copy)
    assert "\n" not in str(caught.value)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(apac.InputError, match="is a file; a run needs a folder"):
        apac.train(CONFIG, tmp_path / "run")
