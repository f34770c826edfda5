"""Parameters of nested deformations and rules by name, as scikit-learn's `get_params` and `set_params` have them.

The parts of a `Compose` are named as by `sklearn.pipeline.make_pipeline`: `homography`, or `jitter-1` and `jitter-2` if
a kind occurs twice. Those of a `PerClass` are named by the class index, or `default`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from apac.adapters.transforms.seeded import SeededTransform
from apac.deform.compose import Compose
from apac.deform.per_class import PerClass
from apac.errors import InputError

SEPARATOR = "__"


def get_parameters(owner: Any) -> dict[str, Any]:
    """Return the parameters of a deformation or rule at every level.

    >>> import apac
    >>> get_parameters(apac.Jitter(0.2))
    {'std': 0.2}
    >>> sorted(get_parameters(apac.Compose(apac.Flip(), apac.Jitter(0.2))))
    ['flip', 'flip__probability', 'jitter', 'jitter__std']
    """
    parameters: dict[str, Any] = {}
    for name, value in _own_parameters(owner).items():
        parameters[name] = value
        nested = get_parameters(value)
        parameters |= {f"{name}{SEPARATOR}{nested_name}": nested[nested_name] for nested_name in nested}
    return parameters


def with_parameters(owner: Any, changes: Mapping[str, Any]) -> Any:
    """Return a copy of a deformation or rule with other values for the named parameters.

    >>> import apac
    >>> with_parameters(apac.Compose(apac.Flip(), apac.Jitter(0.2)), {"jitter__std": 0.5})
    Compose(Flip(probability=0.5), Jitter(std=0.5))
    """
    parameters = _own_parameters(owner)
    nested: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        head, separator, rest = name.partition(SEPARATOR)
        if head not in parameters:
            known = ", ".join(map(repr, parameters)) or "none that can be set"
            raise InputError(f"{owner!r} has no parameter {head!r}; it has {known}.")
        if separator:
            nested.setdefault(head, {})[rest] = value
        else:
            parameters[head] = value
    # After the loop, so that a part and a parameter of that part can be replaced in one call, in any order.
    for name, values in nested.items():
        parameters[name] = with_parameters(parameters[name], values)
    if isinstance(owner, Compose):
        return Compose(*parameters.values())
    if isinstance(owner, PerClass):
        default = parameters.pop("default", None)
        return PerClass({int(c): part for c, part in parameters.items()}, default, classes=owner.classes)
    return replace(owner, **parameters)


def _own_parameters(owner: Any) -> dict[str, Any]:
    if isinstance(owner, Compose):
        return dict(zip(_part_names(owner), owner.parts, strict=True))
    if isinstance(owner, PerClass):
        default = {} if owner.default is None else {"default": owner.default}
        return {str(c): part for c, part in owner.by_class} | default
    # A wrapped transform of another library is described by the caller's object, not by its fields.
    if isinstance(owner, type) or not is_dataclass(owner) or isinstance(owner, SeededTransform):
        return {}
    return {field.name: getattr(owner, field.name) for field in fields(owner) if field.init}


def _part_names(compose: Compose) -> list[str]:
    kinds = [type(part).__name__.lower() for part in compose.parts]
    counts, seen = Counter(kinds), Counter[str]()
    names = []
    for kind in kinds:
        seen[kind] += 1
        names.append(kind if counts[kind] == 1 else f"{kind}-{seen[kind]}")
    return names
