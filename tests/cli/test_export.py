"""apac export."""

from __future__ import annotations

import pytest

import apac
from commands import refusal, succeed

pytest.importorskip("onnxruntime")


def test_export_writes_a_file_that_from_onnx_loads_and_prints_its_shapes(run, digits, tmp_path):
    path = tmp_path / "model.onnx"
    assert "images (n, 1, 28, 28) to logits (n, 10)" in " ".join(succeed("export", run, path).stdout.split())
    images = digits[0][:20]
    decisions = [
        apac.Classifier(network, apac.presets.mnist(), apac.FixedPasses(4)).decide(images).labels.tolist()
        for network in (apac.from_onnx(path), apac.load(run).network)
    ]
    assert decisions[0] == decisions[1]


def test_a_refusal_is_one_sentence_that_names_the_option(run, tmp_path):
    (tmp_path / "model.onnx").touch()
    assert "replace it with --overwrite" in refusal("export", run, tmp_path / "model.onnx")
    assert "omit --whitened" in refusal("export", run, tmp_path / "new.onnx", "--whitened")
    assert "holds no run" in refusal("export", tmp_path, tmp_path / "new.onnx")
