"""Objects of the user's modules by import path, "package.module:name": functions that build a network, and others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from torch import nn

from apac import limits
from apac.errors import InputError
from apac.randomness import generator, seeding
from apac.validation import quoted, shortened

# The packages that this one uses or works with. They are imported with it, and a file must not have one of their
# functions called, such as numpy.full, with numbers of its own.
# fmt: off
LIBRARIES = {
    "PIL", "albumentations", "annotated_doc", "apac", "cv2", "fastapi", "kornia", "matplotlib", "mlxtend", "numba",
    "numpy", "onnx", "onnxruntime", "openvino", "pandas", "platformdirs", "pooch", "prometheus_client", "pyarrow",
    "requests", "rich", "safetensors", "scipy", "shellingham", "sklearn", "starlette", "sympy", "timm", "torch",
    "torchgen", "torchvision", "tqdm", "typer", "typing_extensions", "uvicorn",
}
# fmt: on


def is_import_path(name: str) -> bool:
    return ":" in name and not name.startswith("timm:")  # see timm_network.py


def find_builder(path: str, *, import_it: bool) -> Callable[..., Any]:
    """Return the function that the path names.

    Without `import_it`, the module must be imported already: the path may come from a file, and a file must not decide
    which code runs. For the same reason the function must be defined in that module, and be none of a library.
    """
    module_name, function_name = _split(path, "a network is given as package.module:function")
    module = _imported(module_name, f"the network {quoted(path)}", path) if import_it else sys.modules.get(module_name)
    if module is None:
        raise InputError(
            f"the network is built by {shortened(path)}: import {shortened(module_name)} first, or pass network=."
        )
    function: Callable[..., Any] | None = getattr(module, function_name, None)
    if function is None or not callable(function):
        raise InputError(f"the module {module_name} has no function {quoted(function_name)} that builds a network.")
    if getattr(function, "__module__", None) != module_name or _is_library(module_name):
        raise InputError(
            f"{shortened(path)} is not called: a network is built by a function of yours, in the module that defines "
            f"it; give such a function, or pass network= in Python."
        )
    return function


def _is_library(module_name: str) -> bool:
    package = module_name.partition(".")[0]
    return package in LIBRARIES or package in sys.stdlib_module_names


def build_by_path(
    path: str, image_shape: tuple[int, int, int], classes: int, *, seed: int, import_it: bool
) -> nn.Module:
    """Call the builder with (image_shape, classes), with the global generators seeded."""
    builder = find_builder(path, import_it=import_it)
    with seeding() as seed_all:
        seed_all(generator(seed, "initial weights", 0).initial_seed())
        try:
            network = builder(image_shape, classes)
        except Exception as error:  # a user's function may raise any exception
            raise failure(path, error) from error
    if not isinstance(network, nn.Module):
        raise InputError(f"{path} must return a torch.nn.Module, it returned {type(network).__name__}.")
    return network


def import_object(path: str, what: str) -> Any:
    """Import a module and return its attribute. `what` names the kind of object in error messages."""
    module_name, name = _split(path, f"a {what} is given as package.module:name")
    module = _imported(module_name, f"the {what} {quoted(path)}", path)
    if not hasattr(module, name):
        raise InputError(f"the module {module_name} has no {what} {quoted(name)}.")
    return getattr(module, name)


def failure(what: str, error: Exception) -> InputError:
    """Return the error for an exception in the user's code, such as "mynet:build failed: TypeError: reason."."""
    reason = shortened(error, limits.QUOTED_TEXT) or "no message"
    return InputError(f"{shortened(what)} failed: {type(error).__name__}: {reason}.")


def _split(path: str, usage: str) -> tuple[str, str]:
    module_name, _, name = path.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), name)):
        raise InputError(f"{usage}, got {quoted(path)}.")
    return module_name, name


def _imported(module_name: str, what: str, path: str) -> ModuleType:
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(f"{what} cannot be imported: {shortened(error)}.") from error
    except Exception as error:  # a user's module may raise any exception
        raise failure(path, error) from error
