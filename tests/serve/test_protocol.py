"""The Open Inference Protocol v2 and the upload, over a real connection."""

from __future__ import annotations

import io
import json
import math
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from PIL import Image
from torch import nn

import apac
from apac.serve.model import Model
from apac.serve.protocol import RequestInput, images_of
from apac.serve.refusal import Refusal
from served import LIMITS, files, mnist, request, running, tensor

CLASSES = [str(digit) for digit in range(10)]


def test_the_server_and_the_model_describe_themselves(server):
    with server.client() as client:
        assert client.get("/v2").json()["name"] == "apac"
        assert client.get("/v2/health/live").status_code == client.get("/v2/health/ready").status_code == 200
        assert client.get("/v2/models/mnist-cnn/ready").json() == {"name": "mnist-cnn", "ready": True}
        described = client.get("/v2/models/mnist-cnn").json()
        assert described["inputs"] == [{"name": "images", "datatype": "UINT8", "shape": [-1, 1, 28, 28]}]
        assert {output["name"]: output["shape"] for output in described["outputs"]}["log_scores"] == [-1, 10]
        assert described["parameters"] == {"classes": CLASSES, "datatypes": ["FP32", "UINT8", "BYTES"]}
        unknown = client.get("/v2/models/other")
    assert unknown.status_code == 404
    assert unknown.json() == {"error": "there is no model of that name; /v2 lists the models."}


def test_the_outputs_are_the_decision(server, pixels):
    some = pixels[:3]
    outputs = server.infer(request(tensor(some), passes=20, seed=5, combine="sum", top_k=2))
    run = apac.load("mnist-cnn")
    decision = run.classifier(apac.FixedPasses(20), seed=5, combine="sum").decide(run.normalize(some))
    assert outputs["label"] == decision.labels.tolist()
    assert outputs["class"] == [CLASSES[label] for label in decision.labels]
    assert outputs["passes"] == [20, 20, 20]
    assert outputs["stopped"] == ["fixed"] * 3
    assert outputs["top_labels"] == decision.top(2).flatten().tolist()
    for name in ("log_scores", "probabilities", "standard_errors"):
        # logits differ by the rounding of batches of another size
        assert outputs[name] == pytest.approx(getattr(decision, name).flatten().tolist(), abs=1e-4)
    assert outputs["margin"] == pytest.approx(decision.margins.tolist(), abs=1e-4)


def test_tensors_and_files_of_the_same_image_give_the_same_answer(server, pixels):
    some = pixels[:2]
    from io import BytesIO

    from PIL import Image

    contents = []
    for image in some:
        file = BytesIO()
        Image.fromarray(image[0].numpy()).save(file, "PNG")
        contents.append(file.getvalue())
    answers = [
        server.infer(request(inputs, error=1e-3, limit=64))
        for inputs in (tensor(some), tensor(some.float() / 255, "FP32"), files(*contents))
    ]
    nested = tensor(some) | {"data": some.tolist()}
    assert server.infer(request(nested, error=1e-3, limit=64)) == answers[0] == answers[1] == answers[2]
    assert set(answers[0]["stopped"]) <= {"certified", "limit"}


def test_the_same_image_gives_the_same_bytes_alone_and_among_64_others(server, pixels):
    payload = request(tensor(pixels[:1]), error=1e-3, limit=256)
    content = json.dumps(payload).encode()

    def send() -> bytes:
        with server.client() as client:
            return client.post("/v2/models/mnist-cnn/infer", content=content).content

    alone = send()
    crowd = request(tensor(pixels[1:65]), error=1e-3, limit=256)
    with ThreadPoolExecutor(6) as pool:
        others = [pool.submit(server.infer, crowd)]
        answers = [pool.submit(send) for _ in range(5)]
        assert {answer.result() for answer in answers} == {alone}
        in_one_request = server.infer(request(tensor(pixels[:65]), error=1e-3, limit=256))
        others[0].result()
    first = {output["name"]: output["data"] for output in json.loads(alone)["outputs"]}
    assert first == {name: data[: len(first[name])] for name, data in in_one_request.items()}


def test_the_last_of_65_images_has_the_same_bytes_alone_with_the_prepared_network(pixels):
    with running(mnist()) as server:
        alone, among = (server.infer(request(tensor(some), passes=32)) for some in (pixels[64:65], pixels[:65]))
    assert alone == {name: data[-len(alone[name]) :] for name, data in among.items()}


def test_a_spread_that_does_not_exist_is_null_and_outputs_can_be_chosen(server, pixels):
    payload = {**request(tensor(pixels[:1]), passes=1), "id": "a", "outputs": [{"name": "standard_errors"}]}
    with server.client() as client:
        answer = client.post("/v2/models/mnist-cnn/infer", json=payload).json()
    assert answer["id"] == "a"
    assert answer["outputs"] == [{"name": "standard_errors", "datatype": "FP64", "shape": [1, 10], "data": [None] * 10}]


ZEROS = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        (b"{", "the body is not valid JSON."),
        (b"[" * 1000, "the body is not valid JSON."),
        (b"[" * 100_000, "the body has more values than the images of a request."),
        (b"," * 100_000, "the body has more values than the images of a request."),
        (b"{" * 100_000, "the body has more values than the images of a request."),
        ({}, "inputs is missing or not valid"),
        (request(tensor(ZEROS) | {"datatype": "INT8"}), "inputs.0.datatype is missing or not valid"),
        (request(tensor(ZEROS) | {"shape": [1, 28, 28]}), "the shape of UINT8 images must be [n, 1, 28, 28]"),
        (request(tensor(ZEROS) | {"shape": [0, 1, 28, 28], "data": []}), "n of at least 1"),
        (request(tensor(ZEROS) | {"shape": [2, 1, 28, 28]}), "as many numbers as the shape says"),
        (request(tensor(ZEROS) | {"data": [[1], [1, 2]]}), "as many numbers as the shape says"),
        (request(tensor(ZEROS) | {"data": ["1"] * 784}), "as many numbers as the shape says"),
        (request(tensor(ZEROS) | {"data": [10**400] * 784}), "as many numbers as the shape says"),
        (request(tensor(ZEROS) | {"data": [256] * 784}), "integers between 0 and 255"),
        (request(tensor(ZEROS.float(), "FP32") | {"data": [math.nan] * 784}), "NaN or infinite"),
        (request(tensor(ZEROS.float(), "FP32") | {"data": [1e300] * 784}), "NaN or infinite"),
        (request(files(b"x") | {"data": ["%%%"]}), "image 0 is not valid base64."),
        (request(files(b"not an image")), "image 0 cannot be read; send a picture as an undamaged PNG"),
        (request(files(b"x") | {"data": [1]}), "as many strings as the shape says"),
        (request(tensor(ZEROS), passes=2, limit=64), "choose passes, or error and limit, not both."),
        (request(tensor(ZEROS), passes=4096), "passes must be between 1 and 2048."),
        (request(tensor(ZEROS), limit=15), "limit must be between 16 and 2048."),
        (request(tensor(ZEROS), error=2.0), "error must be above 0 and below 1."),
        (request(tensor(ZEROS), seed=-1), "seed must be between 0 and"),
        (request(tensor(ZEROS), top_k=11), "top_k must be between 1 and the 10 classes."),
        (request(tensor(ZEROS), combine="mean"), "parameters.combine is missing or not valid"),
        (request(tensor(ZEROS), passes="16"), "parameters.passes is missing or not valid"),
        ({**request(tensor(ZEROS)), "outputs": [{"name": "logits"}]}, "outputs must be among label, class"),
    ],
)
def test_bad_requests_are_refused_in_a_fixed_sentence(server, payload, sentence):
    assert sentence in server.refusal(payload)


@pytest.mark.parametrize(
    "data",
    [
        ["x" * 100_000] + ["a"] * 783,
        [0] * 783 + ["x" * 100_000],
        ["x" * 1000] + ["a"] * 100_000,
        [[[["x" * 100_000] + ["a"] * 27] + [["a"] * 28] * 27]],
        [[]] * 784,
    ],
    ids=["long string", "string at the end", "too many", "nested", "empty lists"],
)
def test_what_is_not_a_number_is_refused_before_an_array_is_made_of_it(server, data):
    asked = RequestInput.model_validate(tensor(ZEROS) | {"data": data})
    tracemalloc.start()
    try:
        with pytest.raises(Refusal, match="as many numbers as the shape says"):
            images_of(server.model, asked, threading.Event())
        assert tracemalloc.get_traced_memory()[1] < 10 << 20  # an array of the strings has 300 MB
    finally:
        tracemalloc.stop()


def test_too_many_images_are_refused_before_they_are_read(server):
    huge = tensor(ZEROS) | {"shape": [10**12, 1, 28, 28]}
    assert server.refusal(request(huge), status=413) == "a request may have at most 80 images."


def blank() -> bytes:
    file = io.BytesIO()
    Image.new("L", (40, 40), 200).save(file, "PNG")
    return file.getvalue()


def test_an_upload_is_answered_for_people(server, seven):
    with server.client() as client:
        answer = client.post("/classify?top_k=2", files={"image": ("seven.png", seven)}).json()
        again = client.post("/classify?passes=16&model=mnist-cnn", files={"image": seven}).json()
        refused = [
            client.post("/classify", files={"image": b"x" * 100}),
            client.post("/classify", data={"a": "b"}),
            client.post("/classify?passes=many", files={"image": seven}),
            client.post("/classify?model=x", files={"image": seven}),
            client.post("/classify?pases=3", files={"image": seven}),
            client.post("/classify", content=b"x", headers={"content-type": "multipart/form-data; boundary=a"}),
            client.get("/classify"),
            client.post("/classify", files={"image": blank()}),
            client.post("/v2/models/mnist-cnn/infer", content=b"{}", headers={"Inference-Header-Content-Length": "2"}),
        ]
    assert (answer["class"], answer["settled"], answer["stopped"]) == ("7", True, "certified")
    assert [entry["class"] for entry in answer["classes"]][:1] == ["7"]
    assert len(answer["classes"]) == 2
    assert answer["plain"]["class"] == "7"
    assert "centered by mass" in answer["notes"]
    assert (again["passes"], again["stopped"], again["settled"]) == (16, "fixed", None)
    assert [response.status_code for response in refused] == [400, 400, 400, 404, 400, 400, 405, 400, 400]
    assert refused[7].json()["error"] == "the image shows no digit: nothing stands out from the background."
    assert refused[8].json()["error"].startswith("binary tensors are not supported; send the data as JSON")
    assert all(list(response.json()) == ["error"] for response in refused)
    known = "combine, error, limit, model, passes, seed, top_k"
    assert refused[4].json()["error"] == f"there is no parameter 'pases'; use {known}."
    assert refused[1].json()["error"] == "body.image is missing or not valid; /openapi.json describes the requests."


def test_a_run_on_float_images_takes_only_tensors():
    images, labels = torch.rand(40, 2, 4, 4), torch.arange(40) % 2
    network = nn.Sequential(nn.Flatten(), nn.Linear(32, 2))
    run = apac.train(network, (images, labels), apac.Flip(), config=apac.TrainConfig(epochs=1))
    with running(Model("floats", run, LIMITS)) as server:
        server.infer(request(tensor(images[:2] + 3, "FP32"), passes=2), name="floats")
        with server.client() as client:
            inputs = [tensor((images[:1] * 9).byte()), files(b"x")]
            refused = [client.post("/v2/models/floats/infer", json=request(each)) for each in inputs]
            refused.append(client.post("/classify", files={"image": b"x"}))
            assert client.get("/models").json() == []
    assert [response.status_code for response in refused] == [400, 400, 400]
    assert "this model takes no pixels; send FP32 images." in refused[0].json()["error"]


def test_two_runs_answer_under_their_names(pixels):
    first, second = mnist(), mnist()
    second.name = "copy"
    with running(first, second) as server:
        payload = request(tensor(pixels[:1]), passes=16)
        assert server.infer(payload) == server.infer(payload, name="copy")
        with server.client() as client:
            assert client.get("/v2").json()["models"] == ["mnist-cnn", "copy"]


def test_the_document_describes_the_routes(server):
    with server.client() as client:
        document = client.get("/openapi.json").json()
    assert {"/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/{name}", "/v2/models/{name}/ready"} < set(
        document["paths"]
    )
    infer = document["paths"]["/v2/models/{name}/infer"]["post"]
    reference = infer["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = document["components"]["schemas"][reference.rpartition("/")[2]]
    assert set(schema["properties"]) == {"id", "inputs", "outputs", "parameters"}
    assert "RequestInput" in document["components"]["schemas"]
    assert set(infer["responses"]) == {"200", "4XX", "503"}
    limit = document["components"]["schemas"]["Parameters"]["properties"]["limit"]["anyOf"][0]
    assert limit == {"type": "integer", "minimum": 16, "maximum": 2048}
    by_name = {each["name"]: each["schema"] for each in document["paths"]["/classify"]["post"]["parameters"]}
    assert by_name["model"]["anyOf"][0]["enum"] == ["mnist-cnn"]
