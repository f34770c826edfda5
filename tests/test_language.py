"""One vocabulary and one spelling: American English, in the terms that PyTorch and scikit-learn use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted(
    path
    for pattern in (
        "src/**/*.py",
        "examples/*.py",
        "docs/**/*.md",
        "benchmarks/*.md",
        "benchmarks/*.py",
        "scripts/*",
        "*.md",
    )
    for path in ROOT.glob(pattern)
)

# Names of scipy.ndimage, which spells them so.
EXEMPT = r"grey_(?:dilation|erosion)"

STEMS = (
    "custom|emphas|general|initial|local|maxim|memor|minim|normal|optim|organ|parallel|penal|random|real|recogn|"
    "regular|serial|special|standard|summar|synchron|util|vector|visual"
)
BRITISH = {
    rf"(?:{STEMS})is(?:e|es|ed|er|ers|ing|ation|ations)": "-ize",
    r"analys(?:e|ed|er|ers|ing)": "analyze",
    r"(?:behavi|col|fav|flav|hon|neighb)our\w*": "-or",
    r"centre[ds]?|centring": "center",
    r"greys?|greyscale": "gray",
    r"(?:label|model|cancel|travel|signal)l(?:ed|ing)": "a single l",
    r"artefacts?": "artifact",
    r"catalogues?": "catalog",
    r"defence|licences?": "-se",
    r"fibres?|metres?|litres?": "-er",
    r"fulfil": "fulfill",
    r"judgement": "judgment",
    r"learnt|spelt|burnt": "-ed",
    r"programmes?": "program",
    r"sceptic\w*": "skeptic",
    r"amongst|whilst": "among, while",
    r"per cent": "percent",
}
PRIVATE = {
    r"anew": "again",
    r"at hand": "available",
    r"begun": "started",
    r"by heart": "memorize",
    r"crew": "worker pool",
    r"for the while": "during the call",
    r"gone on with|go on with": "continue",
    r"ha(?:s|ve) had": "name the number of passes done",
    r"heard?": "update",
    r"kindly": "handle errors",
    r"lest": "in case",
    r"line each": "one line per item",
    r"mend(?:s|ed|ing)?": "fix",
    r"need be": "needed",
    r"nobody": "name the subject",
    r"said": "returned, printed",
    r"so many": "name the number",
    r"spoil(?:s|ed)?": "corrupted",
    r"thetas?": "parameters",
    r"to be had": "available",
    r"unharmed": "intact",
    r"whoever": "the caller",
}


def findings(text: str, vocabulary: dict[str, str]) -> list[str]:
    """Return the line number and the word of every match, including matches inside identifiers."""
    text = re.sub(EXEMPT, "", text)
    text = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", text)  # identifiers as words
    any_of_them = re.compile(rf"\b(?:{'|'.join(vocabulary)})\b", re.IGNORECASE)
    return [
        f"{number}: {match[0]!r}, write {better!r}"
        for number, line in enumerate(text.splitlines(), start=1)
        for match in any_of_them.finditer(line)
        for pattern, better in vocabulary.items()
        if re.fullmatch(pattern, match[0], re.IGNORECASE)
    ]


@pytest.mark.parametrize("vocabulary", [BRITISH, PRIVATE], ids=["american spelling", "terms of the field"])
def test_code_and_documentation_use_one_vocabulary(vocabulary):
    wrong = [f"{path.relative_to(ROOT)}:{found}" for path in FILES for found in findings(path.read_text(), vocabulary)]
    assert not wrong, "\n".join(wrong)


def test_the_check_finds_words_in_prose_and_in_identifiers_and_exempts_scipy():
    assert len(findings("# Normalise the colours\nclass GreyImage: ...", BRITISH)) == 3
    assert len(findings("crew_passes(thetas)  # lest it fails", PRIVATE)) == 3
    assert not findings("from scipy.ndimage import grey_dilation  # an optimistic analysis of one moment", BRITISH)
