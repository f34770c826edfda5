"""The architecture: public names, layers and imported modules."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest

import apac

SOURCE = Path(apac.__file__).parent

# A module imports only from layers above its own, or from its own folder.
LAYERS = [
    {"errors", "limits"},
    {"progress", "randomness", "validation", "trees"},
    {"inference", "distributed/ranks"},
    {"deform", "data", "models"},
    {"adapters/transforms"},  # deformations too; a stored run names them, so they are above the runs
    {"classify", "training"},
    {"runs"},
    {"evaluation"},
    {"adapters"},
    {"distributed"},
    {"reporting"},
    {"paper"},
    {"bench"},
    {"serve"},
    {"cli"},
    {"__main__"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def layer_of(path: Path) -> str:
    return layer_of_parts(path.relative_to(SOURCE).parts)


def layer_of_parts(parts: Sequence[str]) -> str:
    joined = "/".join(parts[:2])
    return joined if joined in RANK else parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Return the layers that a file imports, at any level."""
    layers = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "apac":
            layers |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("apac."):
            layers.add(layer_of_parts(str(node.module).split(".")[1:]))
        elif isinstance(node, ast.Import):
            names = (alias.name.split(".") for alias in node.names)
            layers |= {layer_of_parts(name[1:]) for name in names if name[0] == "apac" and name[1:]}
    return layers


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_from_layers_above_it_or_its_own_folder(path):
    layer = layer_of(path)
    assert not {name for name in imported(path) if name != layer and RANK[name] >= RANK[layer]}


def test_at_most_eight_modules_are_at_the_top():
    assert len(list(SOURCE.glob("*.py"))) <= 8


def test_option_names_appear_only_in_the_command_line():
    users = {
        str(path.relative_to(SOURCE))
        for path in MODULES
        if layer_of(path) not in ("cli", "bench") and re.search(r"[\"'\s(]--[a-z]", path.read_text())
    }
    # options of npm and pip, CSS variables, and the commands of the recipes in their description
    assert users <= {"data/sources.py", "data/mnist_5k.py", "reporting/html.py", "paper/recipes.py"}


def test_only_one_module_imports_matplotlib():
    imports = re.compile("(import|from) matplotlib|require.*matplotlib")
    users = {path.name for path in MODULES if imports.search(path.read_text())}
    assert users == {"canvas.py"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_file_exceeds_300_lines(path):
    assert len(path.read_text().splitlines()) <= 300


def test_the_public_names():
    assert sorted(apac.__all__) == [
        "Amplitude",
        "ApacClassifier",
        "ApacError",
        "Certified",
        "Choice",
        "Classifier",
        "Color",
        "Compose",
        "Dataset",
        "Decision",
        "Deformation",
        "DeformationLayer",
        "Elastic",
        "Exhaustive",
        "FeatureDropout",
        "FixedPasses",
        "Flip",
        "Homography",
        "InputError",
        "Jitter",
        "PerClass",
        "Rule",
        "Run",
        "ScaleShift",
        "Scores",
        "Shift",
        "StorageError",
        "Thickness",
        "TimeShift",
        "TimeWarp",
        "TrainConfig",
        "TrainingError",
        "evaluate",
        "from_albumentations",
        "from_callable",
        "from_kornia",
        "from_onnx",
        "from_torchvision",
        "load",
        "presets",
        "train",
        "tune",
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
    assert {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names} == set(
        apac.__all__
    )


def test_importing_the_package_or_the_command_loads_nothing_slow():
    names = {"torch", "numpy", "numba", "PIL", "rich.console", "fastapi", "uvicorn", "prometheus_client"}
    code = f"import sys, apac, apac.cli; print({names} & set(sys.modules))"
    assert run_python(code) == "set()"


def test_only_randomness_creates_generators():
    def makes_one(node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".Generator", "manual_seed"))

    makers = {path.name for path in MODULES if any(map(makes_one, ast.walk(ast.parse(path.read_text()))))}
    assert makers == {"randomness.py"}


def run_python(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


CORE = {"torch", "numpy", "numba", "safetensors", "pillow", "typer", "rich", "platformdirs"}


def test_the_core_dependencies():
    project = tomllib.loads((SOURCE.parent.parent / "pyproject.toml").read_text())["project"]
    assert {name_of(requirement) for requirement in project["dependencies"]} == CORE


def name_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")


def with_dependencies(names: set[str]) -> set[str]:
    """Distributions and those that they require, without extras."""
    done: set[str] = set()
    while names:
        done |= names
        required: set[str] = set()
        for name in names:
            try:
                requirements = metadata.requires(name) or []
            except metadata.PackageNotFoundError:  # required on other platforms
                continue
            required |= {name_of(requirement) for requirement in requirements if "extra ==" not in requirement}
        names = required - done
    return done


def modules_beyond_the_core() -> list[str]:
    allowed = with_dependencies(CORE) | {"augmented-pattern-classification"}
    packages = metadata.packages_distributions().items()
    return [
        module
        for module, owners in packages
        if not {owner.lower().replace("_", "-") for owner in owners} & allowed and module.isidentifier()
    ]


BLOCK = """
import json, sys
blocked = set(json.loads(sys.argv[1])) - {"_distutils_hack"}
sys.modules |= dict.fromkeys(blocked)  # importing them fails, as if they were not installed
import torch, apac
network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
images, labels = torch.rand(40, 1, 8, 8), torch.arange(40) % 2
"""
TRAIN = """
run = apac.train(network, (images, labels), apac.Flip(), config=apac.TrainConfig(epochs=1))
decision = run.classifier(apac.FixedPasses(4)).decide(images[:3])
print(len(decision.labels), sorted(n for n, m in sys.modules.items() if m and n.partition(".")[0] in blocked))
"""


EXPLORE = """
import inspect
from apac import *
inspect.getmembers(apac)
print(hasattr(apac, "Classifier"), "ApacClassifier" in dir(apac))
try:
    apac.ApacClassifier
except apac.InputError as error:
    print(error)
"""


def test_without_scikit_learn_the_names_can_be_listed_and_the_estimator_names_its_extra():
    lines = run_python(BLOCK + EXPLORE, json.dumps(["sklearn"])).splitlines()
    assert lines[0] == "True False"
    assert lines[1].endswith("pip install 'augmented-pattern-classification[sklearn]'")


def test_training_and_decisions_need_only_the_core_dependencies():
    blocked = modules_beyond_the_core()
    assert {"matplotlib", "sklearn", "scipy", "onnxruntime", "pooch"} <= set(blocked)
    assert run_python(BLOCK + TRAIN, json.dumps(blocked)) == "3 []"
