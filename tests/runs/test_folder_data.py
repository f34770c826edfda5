"""Training on a folder of images."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import apac
from apac.data import folder
from apac.runs.labeled_images import images_to_test
from apac.runs.summary import TrainingSummary
from apac.runs.training_data import data_name
from image_folders import DEFAULT, gallery, paint

CONFIG = apac.TrainConfig(epochs=1, batch_size=4, validation_fraction=0.0)


def test_a_class_of_which_all_images_are_held_out_is_rejected(tmp_path):
    root = gallery(tmp_path / "photos", 2)
    config = apac.TrainConfig(epochs=1, validation_fraction=0.6)
    with pytest.raises(apac.InputError, match=r"no image of class .* is left to train on; add some, or use validation"):
        apac.train("cifar10-cnn", root, config=config)


def test_a_gray_run_always_reads_its_folder_as_gray(tmp_path):
    root = gallery(tmp_path / "photos", 4, mode="L")
    run = apac.train("cifar10-cnn", root, config=CONFIG)
    assert run.image_shape == (1, 32, 32)
    paint(root / "sky" / "colored.png", (1, 2, 200))
    assert images_to_test(run).images.shape[1] == 1


def test_a_run_needs_its_folder_for_evaluation_only_and_refuses_other_classes(tmp_path):
    root = gallery(tmp_path / "photos", 4)
    run = apac.train("cifar10-cnn", root, config=CONFIG, out=tmp_path / "run")
    assert (run.data, run.deformation) == (str(root), DEFAULT)
    assert (run.config.learning_rate, run.config.weight_decay) == (0.005, 5e-4)
    paint(root / "sea" / "1.png", (0, 0, 99))
    paint(root / "sea" / "2.png", (0, 0, 99))
    with pytest.raises(apac.InputError, match="has classes that the run does not have: sea; it has apple, leaf, sky"):
        images_to_test(run)
    root.rename(tmp_path / "elsewhere")
    assert apac.load(tmp_path / "run").classes == run.classes
    with pytest.raises(
        apac.InputError, match=r"no folder .*photos, on which this run was trained; if it was moved, pass data="
    ):
        images_to_test(run)


def test_the_size_and_fit_of_a_run_are_used_again_for_evaluation_and_for_files(tmp_path):
    root = gallery(tmp_path / "photos", 4)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 20 * 20, 3))
    summaries: list[TrainingSummary] = []
    config = replace(CONFIG, size=20, fit="pad")
    run = apac.train(network, root, apac.Compose(), config=config, on_start=summaries.append)
    assert run.image_shape == (3, 20, 20)
    dataset = folder.load(root, size=20, fit="pad")
    images = images_to_test(run).images
    torch.testing.assert_close(images, dataset.test_images / 255)
    decision = run.classify(list(dataset.test_files)).decision
    torch.testing.assert_close(decision.log_scores, run.classifier().decide(images).log_scores)
    (summary,) = summaries
    assert (summary.network, summary.parameters, summary.normalization) == ("Sequential", 3603, "standardization")
    assert summary.image_shape == (3, 20, 20) and summary.folder is not None
    assert [counts.name for counts in summary.classes] == list(run.classes)
    assert sum(counts.test for counts in summary.classes) == len(images)


@pytest.mark.parametrize("option", [{"size": 20}, {"fit": "pad"}])
def test_a_size_or_a_fit_is_refused_for_data_that_are_not_a_folder(option, small):
    name, value = next(iter(option.items()))
    with pytest.raises(apac.InputError, match=f'^{name}="?{value}"? is for the images of a folder'):
        apac.train("mnist-cnn", small, config=replace(CONFIG, **option))


def test_a_run_on_data_in_memory_has_no_test_images(tmp_path, small):
    run = apac.train("mnist-cnn", replace(small, name="mine"), apac.Compose(), config=CONFIG)
    assert run.data is None
    with pytest.raises(apac.InputError, match="trained on data in memory"):
        images_to_test(run)


def test_a_folder_is_stored_by_its_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(gallery(tmp_path / "a", 2).parent)
    for name in ("a", "./a", "b/../a", tmp_path / "a"):
        assert data_name(name) == str(tmp_path / "a")
    for missing in ("", "nothing"):
        with pytest.raises(apac.InputError, match="there is no data set"):
            data_name(missing)


def test_class_distinctive_deformation_needs_the_number_of_classes(tmp_path):
    root = gallery(tmp_path / "photos", 4)
    u = apac.PerClass({0: apac.Flip()}, default=apac.Compose(), classes=3)
    assert apac.train("cifar10-cnn", root, u, config=CONFIG).classifier(apac.FixedPasses(2)).deformation == u
    wrong = apac.PerClass({0: apac.Flip()}, default=apac.Compose(), classes=4)
    with pytest.raises(apac.InputError, match="the PerClass has 4 classes, but the network or the data has 3"):
        apac.train("cifar10-cnn", root, wrong, config=CONFIG)


@pytest.mark.parametrize("out", [".", "run", "apple/run"])
def test_a_run_is_not_written_among_its_images(out, tmp_path):
    root = gallery(tmp_path / "photos", 4)
    before = sorted(root.rglob("*"))
    with pytest.raises(apac.InputError, match="is in the folder of the images; choose another folder for the run"):
        apac.train("cifar10-cnn", root, config=CONFIG, out=root / out)
    assert sorted(root.rglob("*")) == before


def test_images_that_do_not_fit_into_memory_are_refused(tmp_path, monkeypatch):
    root = gallery(tmp_path / "photos", 4)
    with pytest.raises(apac.InputError, match="the size of a TrainConfig must be an integer of at most 4,096"):
        apac.TrainConfig(size=100_000)

    def fail(*shape: int, dtype: torch.dtype) -> Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("apac.data.folder.torch.zeros", fail)
    with pytest.raises(apac.InputError, match=r"images of 32 × 32 pixels do not fit into memory \(0 GB\); use fewer"):
        apac.train("cifar10-cnn", root, config=CONFIG)
