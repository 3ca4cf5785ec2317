# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The site: every public name is there with an example, every statement names tests that exist; and the quickstart's notebook."""

import ast
import doctest
import importlib
import json
from pathlib import Path
import re
import tokenize

import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GALLERY = sorted((ROOT / "examples" / "gallery").glob("plot_*.py"))
DOORS = (
    "numpyro_dais",
    "numpyro_dais.linear_regression",
    "numpyro_dais.plots",
    "numpyro_dais.schedule",
)
MOST_LINES_OF_README, MOST_LINES_OF_CODE = 130, 60


def public_names():
    return [f"{door}.{name}" for door in DOORS for name in importlib.import_module(door).__all__]


@pytest.fixture(scope="module")
def reference():
    """The text of all pages of the reference."""
    return "\n".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md"))


def test_every_public_name_is_in_the_reference(reference):
    documented = re.findall(r"^\.\. auto(?:class|function|data):: (\S+)", reference, re.MULTILINE)
    assert sorted(documented) == sorted(public_names())


def has_example(name, code):
    """True if a docstring of the object, or code of the reference, uses it."""
    door, _, name = name.rpartition(".")
    thing = getattr(importlib.import_module(door), name)
    tests = doctest.DocTestFinder().find(thing, name) if callable(thing) else []
    return any(test.examples for test in tests) or re.search(rf"\b{name}\b", code) is not None


def test_every_public_name_has_an_example_that_runs(reference):
    """``test_examples.py`` runs the code of the pages, and the suite that of docstrings."""
    blocks = re.findall(r"^```python\n(.*?)^```", reference, re.DOTALL | re.MULTILINE)
    uses = [line for block in blocks for line in block.splitlines() if "import" not in line]
    without = [name for name in public_names() if not has_example(name, "\n".join(uses))]
    assert without == []


def test_what_checks_the_mathematics_exists():
    text = (DOCS / "mathematics.md").read_text(encoding="utf-8")
    tests = re.findall(r"`(tests/\S+?\.py)::(\w+)`", text)
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert len(tests) > 30
    assert [section.splitlines()[0] for section in sections if "Checked by:" not in section] == []
    for path, name in tests:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in functions, path


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MOST_LINES_OF_README
    for mark in ("<!-- fresh: run -->", "<!-- fresh: test -->"):
        assert lines[lines.index(mark) + 1] == "```bash"


def test_links_of_the_readme_lead_somewhere():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text)]
    here = [link for link in links if not link.startswith(("http", "../../actions"))]
    assert len(here) > 10
    assert [link for link in here if not (ROOT / link).exists()] == []


def lines_of_code(path):
    """Returns the number of lines of a script with code: no comments, no docstrings."""
    words = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines = set()
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            is_text = token.string.startswith(('"""', 'r"""'))
            if token.type not in (*words, tokenize.ENCODING, tokenize.ENDMARKER) and not is_text:
                lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_a_page_of_the_gallery_is_short_and_asserts_its_claim(path):
    text = path.read_text(encoding="utf-8")
    assert "**The claim:**" in text
    assert sum(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(text))) >= 2
    assert lines_of_code(path) <= MOST_LINES_OF_CODE


def cells():
    """Returns the cells of code of the quickstart's notebook."""
    text = (ROOT / "examples" / "quickstart.ipynb").read_text(encoding="utf-8")
    return ["".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "code"]


def without_comments(code):
    return ast.unparse(ast.parse(code))


def test_the_notebook_is_the_first_page_of_the_gallery():
    """Made anew by ``python docs/make_notebook.py``."""
    script = GALLERY[0].read_text(encoding="utf-8")
    tree = ast.parse(script)
    tree.body = tree.body[1:]  # the text at the top
    assert without_comments("\n".join(cells()[1:])) == ast.unparse(tree)


def test_the_notebook_runs():
    """But for the first cell, a magic of Jupyter."""
    magic, *code = cells()
    assert magic == "%matplotlib inline"
    namespace = {}
    for cell in code:
        exec(cell, namespace)
    assert not namespace["evidence"].warnings
    plt.close("all")
