"""The tree shows the architecture: public names, and who may import whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import apac

SOURCE = Path(apac.__file__).parent

# A module imports only from layers above its own, or from its own folder.
LAYERS = [
    {"errors"},
    {"progress", "randomness", "validation", "trees"},
    {"inference"},
    {"deform", "data", "models"},
    {"classify", "training"},
    {"runs"},
    {"evaluation"},
    {"adapters"},
    {"reporting"},
    {"paper"},
    {"bench"},
    {"cli"},
    {"__main__"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The layers that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "apac":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("apac."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("apac.")}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_from_layers_above_it_or_its_own_folder(path):
    own = layer_of(path)
    wrong = {name for name in imported(path) if name != own and RANK[name] >= RANK[own]}
    assert not wrong


def test_only_the_canvas_of_the_figures_imports_matplotlib():
    users = {path.name for path in MODULES if "matplotlib" in path.read_text()}
    assert users == {"canvas.py"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_file_passes_300_lines(path):
    assert len(path.read_text().splitlines()) <= 300


def test_the_public_names():
    assert sorted(apac.__all__) == [
        "Amplitude",
        "ApacClassifier",
        "ApacError",
        "Certified",
        "Classifier",
        "Color",
        "Compose",
        "Dataset",
        "Decision",
        "Deformation",
        "Elastic",
        "FeatureDropout",
        "FixedPasses",
        "Flip",
        "Homography",
        "InputError",
        "Jitter",
        "PerClass",
        "Run",
        "ScaleShift",
        "StorageError",
        "Thickness",
        "TimeShift",
        "TimeWarp",
        "TrainConfig",
        "TrainingError",
        "from_albumentations",
        "from_callable",
        "from_kornia",
        "from_onnx",
        "from_torchvision",
        "load",
        "presets",
        "train",
    ]
    for name in apac.__all__:
        assert getattr(apac, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Certain'"):
        apac.Certain  # noqa: B018


def test_no_public_name_is_also_a_module_which_would_hide_it_once_imported():
    modules = {path.name.removesuffix(".py") for path in SOURCE.iterdir()}
    assert not modules & set(apac.__all__)


def test_names_for_type_checkers_are_the_public_names():
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    assert {alias.asname for node in block.body for alias in node.names} == set(apac.__all__)


@pytest.mark.parametrize("module", ["apac", "apac.cli"])
def test_torch_is_not_imported_before_it_is_needed(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_only_randomness_makes_generators():
    makers = {
        path.name for path in MODULES if "torch.Generator()" in path.read_text() or "manual_seed" in path.read_text()
    }
    assert makers == {"randomness.py"}
