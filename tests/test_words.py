# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Words of the package: docstrings that say what a thing is or returns, in lines that fit."""

import ast
import io
from pathlib import Path
import tokenize

import pytest

import numpyro_dais

PACKAGE = Path(numpyro_dais.__file__).parent
LONGEST_LINE = 100
# A docstring that begins with one of these asks, and leaves what is returned to be guessed.
QUESTIONS = {"What", "Where", "How", "Which", "Whether"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(source):
    """Returns the constants of the syntax tree that are docstrings."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            yield node.body[0].value


def questions(source):
    """Returns the lines at which docstrings begin with a question word."""
    return [
        docstring.lineno
        for docstring in docstrings(source)
        if docstring.value.split() and docstring.value.split()[0] in QUESTIONS
    ]


def long_lines(source):
    """Returns the lines of comments and docstrings that are longer than they may be."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    numbers = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    for docstring in docstrings(source):
        numbers.update(range(docstring.lineno, docstring.end_lineno + 1))
    lines = source.splitlines()
    return sorted(number for number in numbers if len(lines[number - 1]) > LONGEST_LINE)


def found(check_fn):
    """Returns the places in the package that a check finds, as ``path:line``."""
    paths = {path.relative_to(PACKAGE): path for path in sorted(PACKAGE.rglob("*.py"))}
    assert len(paths) > 50
    sources = {name: path.read_text(encoding="utf-8") for name, path in paths.items()}
    return [f"{name}:{line}" for name, source in sources.items() for line in check_fn(source)]


def test_docstrings_begin_with_no_question():
    assert found(questions) == []


def test_comments_and_docstrings_fit():
    assert found(long_lines) == []


ASKED = {
    "a module": '"""What is integrated."""',
    "a class": 'class A:\n    """\n    Where chains start.\n    """',
    "a function": 'def f():\n    r"""How it is done."""',
    "an inner function": 'def f():\n    def g():\n        """Whether it is."""',
    "a method": 'class A:\n    async def f(self):\n        """Which it is."""',
}


@pytest.mark.parametrize("source", ASKED.values(), ids=ASKED)
def test_a_question_is_found(source):
    assert len(questions(source)) == 1


SAID = {
    "another word": '"""Returns what is integrated."""',
    "a longer word": '"""Whatever is integrated."""',
    "lower case": '"""what is integrated."""',
    "no docstring": 'x = "What is integrated."',
    "a comment": "# What is integrated.\nx = 1",
}


@pytest.mark.parametrize("source", SAID.values(), ids=SAID)
def test_a_statement_is_not(source):
    assert questions(source) == []


def test_long_lines_are_found_where_words_are():
    long = "x" * LONGEST_LINE
    assert long_lines(f"# {long}\nx = 1\ny = 2  # {long}\n") == [1, 3]
    assert long_lines(f'def f():\n    """\n    Returns.\n\n    {long}\n    """\n') == [5]
    assert long_lines(f'x = "{long}"\ny = "# {long}"\n') == []
    assert long_lines("# " + long[2:]) == []
