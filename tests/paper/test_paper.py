"""Recipes, table and figures."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import apac
from apac import models
from apac.classify.scores import Scores
from apac.evaluation.certified import Agreement, CertifiedEvaluation, Difference
from apac.evaluation.fixed import Evaluation, Row, evaluate
from apac.paper import recipes
from apac.randomness import generator
from apac.reporting import html, tables
from apac.reporting.figures import curves, linear_output
from apac.reporting.figures import images as pictures
from decisions import made

PER_CLASS = apac.PerClass({1: apac.Compose()}, default=apac.Flip(), classes=10)


def evaluation(plain: float, *rows: Row) -> Evaluation:
    return Evaluation(1000, 0, plain, 0.001, rows, (1, 2), (3,), (), 1.0, None, 0.0)


def test_the_summary_is_in_the_order_given_with_the_papers_numbers_beside():
    deformed = evaluation(0.0105, Row(1, 0.03, 0.03, 0.01), Row(16384, 0.0023, 0.0024, 0.0001))
    paper = recipes.PAPER_TABLE["mnist-cnn"]
    one = {"original": 1, "deformed": 1}
    summary = tables.summary({"original": evaluation(0.022), "deformed": deformed}, paper, one)
    assert summary.rows == (
        ("original data", "plain", "2.20 % ± 0.46", "0.69 %"),
        ("deformed data", "plain", "1.05 % ± 0.32", "0.39 %"),
        ("deformed data", "APAC, 16,384 passes", "0.23 % ± 0.15", "0.23 %"),
    )
    rows = tables.summary({"distinctive": deformed}, paper, {"distinctive": 2}).rows
    assert [row[3] for row in rows] == ["not tried"] * 2
    assert rows[1][1] == "APAC, 2 × 16,384 passes"
    assert (
        tables.changes(deformed) == "APAC corrected 2 and corrupted 1 of the 1,000 plain predictions (McNemar p = 1)."
    )


def test_every_cell_of_a_table_is_in_the_page_and_nothing_is_markup_by_accident():
    page = html.page("a < b", "lead & more", [html.Section("s", table=tables.Table("t", ("<b>",), (("x & y",),)))])
    assert "a &lt; b" in page
    assert "<th>&lt;b&gt;</th>" in page
    assert "<td>x &amp; y</td>" in page
    assert "lead &amp; more" in page


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_figures_are_drawn_for_gray_and_color_images_with_and_without_errors(shape, random):
    images = torch.rand(12, *shape, generator=random)
    labels = torch.arange(12) % 10
    network = models.build("mnist-mlp" if shape[0] == 1 else "cifar10-mlp", generator=generator(0, "test", 0)).eval()
    classifier = apac.Classifier(network, apac.Homography(), apac.FixedPasses(3))
    result = evaluate(classifier, images, labels, (1, 3))
    right = evaluate(classifier, images, classifier.decide(images).labels, (3,))
    assert right.wrong == ()
    classes = [f"class {c}" for c in range(10)]
    drawn = [
        pictures.deformed_samples(images[:3], labels[:3], apac.presets.cifar10()),
        pictures.deformed_samples(images[:3], labels[:3], PER_CLASS),
        linear_output.linear_output(images, labels, classifier, 5, images[5], classes),
        curves.networks_against_m({"a": result, "b": right}),
        curves.error_against_m(result, result),
        pictures.misclassified(images, labels, result, classes),
        pictures.misclassified(images, labels, right, classes),
        pictures.corrected(images[:1], int(labels[0]), classifier, result.scores.log_mean[0], images[:1], classes),
        pictures.first_layer_weights({"a": network, "b": network}, shape),
    ]
    for picture in drawn:
        with Image.open(io.BytesIO(picture)) as image:
            assert min(image.size) > 50
            assert np.asarray(image.convert("L")).std() > 1


def test_a_convolutional_network_has_no_weight_maps_to_draw():
    network = models.build("mnist-cnn", generator=generator(0, "test", 0))
    assert pictures.first_layer_weights({"cnn": network}, (1, 28, 28)) is None


def certainty(decision: apac.Decision, error: float = 1e-4, **others: float) -> CertifiedEvaluation:
    passes, stopped = decision.passes.double().numpy(), np.array(decision.stopped)
    known = CertifiedEvaluation(
        images=len(passes),
        seed=0,
        rule=apac.Certified(error),
        wrong=0.02,
        mean=passes.mean(),
        median=np.median(passes),
        percentile99=np.percentile(passes, 99),
        uncertain=int((stopped == "limit").sum()),
        clipped=0,
        failed=int((stopped == "nan").sum()),
        seconds=2.0,
        decision=decision,
    )
    return replace(known, **others)


FAILED = {"labels": [0, -1, 1], "margins": [2.0, math.nan, 0.5]}
DECISIONS = {
    "passes of every number": made(
        ["certified"] * 3 + ["limit"], margins=[9.0, 2.0, 0.3, 0.01], passes=[16, 48, 1040, 16384], labels=[0, 1, 0, 0]
    ),
    "the same passes": made(["certified"] * 4, margins=[1.0, 2.0, 3.0, 4.0]),
    "the fewest passes": made(["certified"] * 2, passes=16),
    "all at the limit": made(["limit"] * 3, passes=[40, 40, 40], margins=[0.1, 0.2, 0.0]),
    "one not decided": made(["certified", "nan", "limit"], passes=[32, 0, 64], **FAILED),
    "one image": made(["certified"]),
    "a margin of zero": made(["certified", "limit"], margins=[1.0, 0.0]),
    "margins of zero alone": made(["limit"] * 2, margins=0.0),
    "an infinite margin": made(["certified"] * 2, margins=[math.inf, 1.0]),
    "infinite margins alone": made(["certified"] * 2, margins=math.inf),
}


def assert_drawn(picture: bytes) -> None:
    with Image.open(io.BytesIO(picture)) as image:
        assert image.format == "PNG"
        assert min(image.size) > 50
        assert np.asarray(image.convert("L")).std() > 1


@pytest.mark.parametrize(
    "name",
    DECISIONS,
)
def test_passes_are_drawn_over_any_margins(name):
    decision = DECISIONS[name]
    assert_drawn(curves.passes_against_margin(decision, torch.zeros(len(decision.stopped), dtype=torch.long)))


@pytest.mark.parametrize("name", [name for name in DECISIONS if "margin" not in name])
def test_certainty_is_drawn_beside_fixed_numbers_for_any_passes(name):
    result = certainty(DECISIONS[name], wrong=0.0)
    assert_drawn(curves.certified([result], evaluation(0.0, Row(1, 0.0, 0.0, 0.0))))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures as they are, not as PNG."""
    monkeypatch.setattr(curves, "png", lambda figure: figure)
    monkeypatch.setattr(linear_output, "png", lambda figure: figure)


def legend(figure) -> dict[str, int]:
    texts = (text.get_text().rpartition(": ") for text in figure.axes[0].get_legend().get_texts())
    return {text: int(count) for text, _, count in texts}


def test_the_legend_counts_the_certified_the_wrong_and_the_uncertain(drawn):
    decision = made(["certified"] * 4 + ["limit"] * 2, labels=[0, 0, 0, 1, 1, 0], passes=[32] * 4 + [64] * 2)
    assert legend(curves.passes_against_margin(decision, torch.zeros(6, dtype=torch.long))) == {
        "certified, and the true class": 3,
        "certified, and not the true class": 1,
        "not certain at the limit": 2,
    }


def test_an_image_that_was_not_decided_is_not_called_certified(drawn):
    found = legend(curves.passes_against_margin(DECISIONS["one not decided"], torch.zeros(3, dtype=torch.long)))
    assert sum(count for text, count in found.items() if text.startswith("certified")) == 1


@pytest.mark.parametrize(("combine", "what"), [("product", "log-probability"), ("sum", "probability")])
def test_the_axis_names_what_ranks_the_classes(drawn, combine, what):
    figure = curves.passes_against_margin(made(["certified"], combine=combine), torch.tensor([0]))
    assert figure.axes[0].get_xlabel() == f"margin: mean {what} of the label less that of the second class"


def test_virtual_samples_lie_where_the_network_puts_the_first_passes(drawn, random):
    images, labels = torch.rand(30, 1, 6, 6, generator=random), torch.arange(30) % 3
    weights = torch.randn(36, 3, generator=random)
    classifier = apac.Classifier(lambda x: x.flatten(1) @ weights, apac.Homography(), apac.FixedPasses(8), seed=4)
    logits = images.flatten(1) @ weights
    index = int((logits.argmax(1) != labels).nonzero()[0])
    truth, other = int(labels[index]), int(logits[index].argmax())
    figure = linear_output.linear_output(images, labels, classifier, index, images[index], "abc")
    left, right = figure.axes[:2]
    points = {c.get_label(): c.get_offsets().data for c in right.collections}
    np.testing.assert_allclose(points[f"class {'abc'[other]}"], logits[labels == other][:, [other, truth]], rtol=1e-4)
    np.testing.assert_allclose(points[f"class {'abc'[truth]}"], logits[labels == truth][:, [other, truth]], rtol=1e-4)
    theta = apac.Homography().sample(1, (1, 6, 6), generator=generator(4, "pass", 7))
    seventh = apac.Homography().apply(images[index : index + 1], theta).flatten(1) @ weights
    virtual = points["virtual samples"]
    assert len(virtual) == 1000
    np.testing.assert_allclose(virtual[7], seventh[0, [other, truth]], rtol=1e-4)
    favor = int((virtual[:, 1] > virtual[:, 0]).sum())
    assert right.get_title() == f"{favor:,} of 1,000 virtual samples favor the truth"
    assert (left.get_xlabel(), left.get_ylabel()) == (
        f"output of class {'abc'[other]}",
        f"output of class {'abc'[truth]}",
    )


def test_every_image_is_in_one_bar_of_the_strictest_rule(drawn):
    passes = [16, 16, 32, 48, 80, 1040, 1040, 9999, 16384]
    strict = certainty(made(["certified"] * 8 + ["limit"], passes=passes), error=0.001, wrong=0.01)
    loose = certainty(made(["certified"] * 9, passes=16), error=0.1, wrong=0.03)
    figure = curves.certified([loose, strict], evaluation(0.05, Row(1, 0.2, 0.2, 0.1), Row(64, 0.02, 0.02, 0.01)))
    left, right = figure.axes
    bars = [(bar.get_x(), bar.get_x() + bar.get_width(), bar.get_height()) for bar in left.patches]
    assert [height for _, _, height in bars] == [sum(low <= p < high for p in passes) for low, high, _ in bars]
    assert sum(height for _, _, height in bars) == len(passes)
    assert left.get_title() == f"error 0.001: mean {np.mean(passes):.0f}, median 80"
    lines = {line.get_label(): line.get_xydata().tolist() for line in right.get_lines()}
    assert lines["fixed M"] == [[1.0, 20.0], [64.0, 2.0]]
    assert lines["certified"] == [[16.0, 3.0], [pytest.approx(np.mean(passes)), 1.0]]
    assert [text.get_text() for text in right.texts] == ["0.1", "0.001"]


def test_the_table_of_a_certainty_holds_its_numbers():
    decision = made(["certified"] * 3 + ["limit"], passes=[32, 48, 64, 2048])
    numbers = {"images": 4000, "mean": 1234.56, "median": 48.0, "percentile99": 16384.0, "uncertain": 50}
    shown = tables.certainty(certainty(decision, error=0.001, wrong=0.0315, clipped=6, **numbers), plain=0.0425)
    assert shown.title == "4,000 test images, certified falsely with a probability of at most 0.001"
    assert dict(shown.rows) == {
        "test error, plain": "4.25 %",
        "test error, certified": "3.15 %",
        "passes, mean": "1,234.6",
        "passes, median": "48",
        "passes, 99th percentile": "16,384",
        "not certain, limit 16,384": "50 of 4,000 (1.25 %)",
        "certified with the clip active": "6 of 4,000 (0.15 %)",
        "time": "2.0 s",
    }


def test_the_table_names_images_that_were_not_decided():
    shown = tables.certainty(certainty(DECISIONS["one not decided"]), plain=0.0)
    assert shown.rows[-1] == ("not decided: NaN", "1 of 3 (33.33 %)")


def test_several_errors_are_listed_from_the_loosest_with_what_differs_from_the_most_passes():
    log = torch.tensor([[-1.0, -2.0], [-2.0, -1.0], [-1.0, -2.0]], dtype=torch.float64)
    scores = Scores(64, 64 * log, 64 * log**2, 64 * log.exp(), 64 * log.exp() ** 2)
    fixed = replace(evaluation(0.05, Row(1, 0.2, 0.2, 0.1), Row(64, 0.02, 0.02, 0.01)), scores=scores)
    strict = certainty(made(["certified", "certified", "limit"], labels=[0, 1, 0], passes=[48, 64, 1024]), error=0.01)
    loose = certainty(made(["certified"] * 3, labels=[0, 0, 1], passes=16), error=0.3, wrong=0.1)
    shown = tables.certainties([strict, loose], fixed)
    assert "64 passes" in shown.title
    assert shown.rows == (
        ("0.3", "16.0", "16", "16", "0", "2", "10.00 %"),
        ("0.01", "378.7", "64", "1,005", "1", "0", "2.00 %"),
    )


def test_agreement_is_told_in_sentences_and_names_every_difference():
    differ = (
        Difference(12, certified=4, fixed=9, passes=1040, margin=0.125, margin_error=0.03125, fixed_margin=0.0625),
        Difference(977, certified=7, fixed=1, passes=48, margin=2.0, margin_error=0.5, fixed_margin=1.5),
    )
    agreement = Agreement(16_384, 9_950, differ, (3, 5, 8), 0.0031, 5000.0)
    assert tables.agreement(agreement, certainty(DECISIONS["one image"])).splitlines() == [
        "Of 9,950 certified decisions 2 differ from those of 16,384 passes, and of the uncertain ones 3. Those passes "
        "have 0.31 % error and took 5,000 s when they were made, 2,500 times as long.",
        "  image 12: certified 4 by 0.1250 ± 0.0312 after 1,040 passes, then 9 by 0.0625",
        "  image 977: certified 7 by 2.0000 ± 0.5000 after 48 passes, then 1 by 1.5000",
    ]


def test_full_agreement_is_one_sentence():
    told = tables.agreement(Agreement(64, 3, (), (), 0.0, 4.0), certainty(DECISIONS["one image"]))
    assert told == (
        "Of 3 certified decisions 0 differ from those of 64 passes, and of the uncertain ones 0. Those passes have "
        "0.00 % error and took 4 s when they were made, 2.0 times as long."
    )
