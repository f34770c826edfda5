"""Errors of the package."""

from __future__ import annotations

import pytest

import apac
from apac.errors import require


@pytest.mark.parametrize(
    ("error", "builtin"),
    [(apac.InputError, ValueError), (apac.TrainingError, RuntimeError), (apac.StorageError, OSError)],
)
def test_every_error_is_an_apac_error_and_the_builtin_that_it_specializes(error, builtin):
    with pytest.raises(apac.ApacError, match="what to do"):
        raise error("what to do")
    assert issubclass(error, builtin)


def test_a_missing_extra_is_one_sentence_with_the_install_command():
    assert require("json", extra="paper").loads("1") == 1
    with pytest.raises(apac.InputError) as missing:
        require("no_such_package.part", extra="paper")
    command = "pip install 'augmented-pattern-classification[paper]'"
    assert str(missing.value) == f"no_such_package is not installed; run: {command}"
