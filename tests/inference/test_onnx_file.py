"""Networks in ONNX files, compared with the exported torch network."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest
import torch
from fuzz.hostile_files import integers
from torch import nn

import apac
from apac import limits
from apac.inference.onnx_check import check_onnx

NETWORK = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()


def export(path: Path, *, batch: int | None = None, network: nn.Module = NETWORK) -> Path:
    pytest.importorskip("onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (torch.zeros(batch or 2, 1, 8, 8),),
            path,
            input_names=["images"],
            dynamic_axes=None if batch else {"images": {0: "n"}},
            dynamo=False,
        )
    return path


@pytest.mark.parametrize("batch", [None, 1, 4])
def test_its_logits_are_those_of_the_network_for_any_number_of_images(batch, tmp_path, random):
    network = apac.from_onnx(export(tmp_path / "n.onnx", batch=batch))
    for count in (1, 3, 9):
        images = torch.rand(count, 1, 8, 8, generator=random)
        with torch.no_grad():
            expected = NETWORK(images)
        # float32 sums of 144 products in another order
        torch.testing.assert_close(network(images), expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(network(images.double()), expected, atol=1e-5, rtol=1e-4)


def test_a_batch_that_is_too_large_to_pad_is_refused(tmp_path):
    path = export(tmp_path / "n.onnx", batch=4)
    onnx = pytest.importorskip("onnx")
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 10**8
    onnx.save(model, path)
    with pytest.raises(apac.InputError, match="takes 100,000,000 images at a time; export it for at most 4,096"):
        apac.from_onnx(path)


def test_decisions_by_the_file_are_those_by_the_network(tmp_path, random):
    images = torch.rand(20, 1, 8, 8, generator=random)
    network = apac.from_onnx(str(export(tmp_path / "n.onnx")))
    by_file, by_network = (
        apac.Classifier(n, apac.Homography(), apac.FixedPasses(8)).decide(images) for n in (network, NETWORK)
    )
    torch.testing.assert_close(by_file.log_scores, by_network.log_scores, atol=1e-4, rtol=0)


def test_a_file_that_is_not_such_a_network_is_rejected_in_one_sentence(tmp_path):
    with pytest.raises(apac.InputError, match="there is no file"):
        apac.from_onnx(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("not a network")
    with pytest.raises(apac.InputError, match="cannot be read as an ONNX network"):
        apac.from_onnx(tmp_path / "text.onnx")
    network = apac.from_onnx(export(tmp_path / "n.onnx"))
    with pytest.raises(apac.InputError, match=r"takes images of shape \('n', 1, 8, 8\), got \(2, 3, 9, 9\)"):
        network(torch.zeros(2, 3, 9, 9))
    double = nn.Sequential(nn.Flatten(), nn.Linear(64, 2)).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
        torch.onnx.export(double, (one,), tmp_path / "d.onnx", input_names=["images"], dynamo=False)
    with pytest.raises(
        apac.InputError, match=r"must have one input of float32 images, it has images: tensor\(double\)"
    ):
        apac.from_onnx(tmp_path / "d.onnx")


def test_without_the_runtime_the_error_has_the_install_command(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(apac.InputError, match=r"onnxruntime is not installed; run: pip install .*\[fast\]"):
        apac.from_onnx(tmp_path / "n.onnx")


def test_an_output_that_is_not_a_tensor_is_rejected_with_what_to_do(tmp_path):
    onnx = pytest.importorskip("onnx")
    number, sequence = onnx.TensorProto.FLOAT, onnx.helper.make_tensor_sequence_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("SequenceConstruct", ["images"], ["parts"])],
        "sequence",
        [onnx.helper.make_tensor_value_info("images", number, ["n", 1, 8, 8])],
        [sequence("parts", number, None)],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "s.onnx")
    with pytest.raises(apac.InputError, match=r"the first output of .*s\.onnx, parts, must be a tensor"):
        apac.from_onnx(tmp_path / "s.onnx")


@pytest.mark.parametrize("where", ["initializer", "nested"])
def test_weights_in_other_files_are_refused(where, tmp_path):
    onnx = pytest.importorskip("onnx")
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[4], data_location=1)
    tensor.external_data.add(key="location", value="../secret")
    image = onnx.helper.make_tensor_value_info("images", onnx.TensorProto.FLOAT, ["n", 4])
    out = onnx.helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, ["n", 4])
    nodes = [onnx.helper.make_node("Add", ["images", "w"], ["out"])]
    if where == "nested":
        nodes.insert(0, onnx.helper.make_node("Constant", [], ["w"], value=tensor))
    graph = onnx.helper.make_graph(nodes, "g", [image], [out], [tensor] if where == "initializer" else [])
    (tmp_path / "n.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    with pytest.raises(apac.InputError, match="has weights in other files; export it as one file"):
        apac.from_onnx(tmp_path / "n.onnx")


def test_an_external_location_without_a_name_is_refused_too(tmp_path):
    """A TensorProto with one empty entry of external_data, in the attribute of a node."""
    tensor = b"\x6a\x00"
    attribute = b"\x2a" + bytes([len(tensor)]) + tensor
    node = b"\x2a" + bytes([len(attribute)]) + attribute
    graph = b"\x0a" + bytes([len(node)]) + node
    (tmp_path / "n.onnx").write_bytes(b"\x3a" + bytes([len(graph)]) + graph)
    with pytest.raises(apac.InputError, match="has weights in other files"):
        apac.from_onnx(tmp_path / "n.onnx")


def test_a_file_that_is_too_large_is_refused_before_it_is_read_unless_the_caller_allows_it(tmp_path):
    path = export(tmp_path / "n.onnx")
    assert limits.ONNX_BYTES > 178e6  # ResNet-101
    with pytest.raises(apac.InputError, match="has 0 MiB, and a network may have 0; raise max_bytes if you trust"):
        apac.from_onnx(path, max_bytes=path.stat().st_size - 1)
    apac.from_onnx(path, max_bytes=path.stat().st_size)
    with path.open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(apac.InputError, match="has 1,048,576 MiB, and a network may have 174"):
        apac.from_onnx(path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty; give an .onnx file"),
        (b"\x3a\x28" + b"\x0a\x00" * 20, "has more than 20 fields beside its weights"),
        (bytes(50), "is damaged or truncated"),
        (b"\x3a\x7f\x0a", "is damaged or truncated"),  # a graph that is longer than the file
        (b"\xff" * 50, "is damaged or truncated"),
        (b"\x3b\x00", "is damaged or truncated"),  # a group, which no ONNX file has
        (
            integers(5 << 20, b"\x3a\x2a\x3a"),
            "has more than 4 MiB of integers outside of raw data",
        ),  # int64_data of a tensor
        (
            integers(5 << 20, b"\x3a\x0a\x2a\x42"),
            "has more than 4 MiB of integers outside of raw data",
        ),  # of a node's attribute
    ],
)
def test_a_file_that_is_damaged_or_has_too_many_fields_is_refused_before_a_library_reads_it(
    content, sentence, tmp_path, monkeypatch
):
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *arguments, **options: pytest.fail("it was read"))
    monkeypatch.setattr(limits, "ONNX_FIELDS", 20)
    (tmp_path / "n.onnx").write_bytes(content)
    with pytest.raises(apac.InputError, match=sentence):
        apac.from_onnx(tmp_path / "n.onnx")


def test_a_caller_who_trusts_a_file_may_allow_more_integers(tmp_path):
    pytest.importorskip("onnx")
    (tmp_path / "n.onnx").write_bytes(integers(5 << 20, b"\x3a\x2a\x3a"))
    check_onnx(tmp_path / "n.onnx", limits.ONNX_BYTES + (6 << 20))
    with pytest.raises(apac.InputError, match="MiB of integers outside of raw data; raise max_bytes"):
        check_onnx(tmp_path / "n.onnx", limits.ONNX_BYTES)
