# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
No code twice: statements in a row that are the same but for the names of local variables.

Signatures, docstrings, annotations and plain names that a call hands on do not count. Tools that
compare lines of text find no copy whose variables were renamed, and none within one file.
"""

import ast
from collections import defaultdict
from pathlib import Path

import numpyro_dais

PACKAGE = Path(numpyro_dais.__file__).parent

# The fewest nodes of the syntax tree that make a copy: some three lines of arithmetic. A round
# number: fewer also find pairs of lines that do alike things, such as a split of a key.
SMALLEST_COPY = 25

UNREAD_FIELDS = {"annotation", "returns", "type_comment", "ctx"}
UNCOUNTED_NODES = (ast.operator, ast.keyword)


class Reader:
    """Statements as a text in which local variables are numbered as they appear."""

    def __init__(self, local_names):
        self.local_names, self.numbers = local_names, {}
        self.words, self.size = [], 0

    def read(self, value):
        if isinstance(value, list):
            for item in value:
                self.read(item)
        elif isinstance(value, ast.AST):
            self.words.append(type(value).__name__)
            self.size += self.count(value)
            for field, child in ast.iter_fields(value):
                if field in ("id", "arg") and not isinstance(value, ast.keyword):
                    child = self.rename(child)
                if field not in UNREAD_FIELDS:
                    self.read(child)
        else:
            self.words.append(repr(value))

    def rename(self, name):
        is_local = name in self.local_names
        return self.numbers.setdefault(name, len(self.numbers)) if is_local else name

    def count(self, node):
        """Returns 1 for most nodes, and takes back what a call hands on by its name."""
        arguments = []
        if isinstance(node, ast.Call):
            arguments = [*node.args, *[keyword.value for keyword in node.keywords]]
        num_names = sum(isinstance(argument, ast.Name) for argument in arguments)
        return (not isinstance(node, UNCOUNTED_NODES)) - num_names


def local_names(function):
    """Returns the names of a function's arguments and of all that it assigns to."""
    nodes = list(ast.walk(function))
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return stored | {node.arg for node in nodes if isinstance(node, ast.arg)}


def is_docstring(statement):
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def passages(function):
    """Returns, from each statement on, as many as make a copy: their text and first line."""
    names = local_names(function)
    fields = [getattr(n, field, None) for n in ast.walk(function) for field in ("body", "orelse")]
    for block in [field for field in fields if isinstance(field, list)]:
        block = [statement for statement in block if not is_docstring(statement)]
        for first in range(len(block)):
            reader = Reader(names)
            for statement in block[first:]:
                reader.read(statement)
                if reader.size >= SMALLEST_COPY:
                    yield " ".join(reader.words), block[first].lineno
                    break


def copies(sources):
    """
    Returns the places, each a name and a line, of code that is there more than once.

    :param sources: source texts by name.
    """
    places = defaultdict(set)
    for name, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                for text, line in passages(node):
                    places[text].add((name, line))
    return sorted(sorted(found) for found in places.values() if len(found) > 1)


def test_no_code_is_there_twice():
    paths = PACKAGE.rglob("*.py")
    assert copies({str(path.relative_to(PACKAGE)): path.read_text() for path in paths}) == []


ORIGINAL = '''
def width(draws):
    """Returns one."""
    draws = np.where(np.isfinite(draws), draws, np.nan)
    low, high = np.nanquantile(draws, [0.25, 0.75], axis=0)
    return (high - low) / 1.349
'''
RENAMED = """
def spread(positions: np.ndarray, scale: float) -> np.ndarray:
    positions = np.where(np.isfinite(positions), positions, np.nan)
    lower, upper = np.nanquantile(positions, [0.25, 0.75], axis=0)
    return (upper - lower) / 1.349
"""
ARGUMENTS = '''
def run(rng_key, target, settings, memory, transition, on_step, reversible):
    """Returns a run."""
    return particles(rng_key, target, settings, memory, transition, on_step, options=reversible)
'''


def test_a_renamed_copy_is_found():
    assert copies({"a": ORIGINAL, "b": RENAMED}) == [[("a", 4), ("b", 3)]]
    assert copies({"one file": ORIGINAL + RENAMED}) == [[("one file", 4), ("one file", 9)]]


def test_another_number_is_no_copy():
    assert copies({"a": ORIGINAL, "b": RENAMED.replace("0.25", "0.05")}) == []


def test_lists_of_arguments_are_no_copies():
    assert copies({"a": 3 * ARGUMENTS, "b": ARGUMENTS}) == []
