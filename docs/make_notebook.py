# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Makes ``examples/quickstart.ipynb`` of the first page of the gallery:

    python docs/make_notebook.py
"""

import json
from pathlib import Path
import re

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPT = EXAMPLES / "gallery" / "plot_01_eight_schools.py"


def to_markdown(text: str) -> str:
    """Returns text in reStructuredText, of the few kinds of marks that the page has, as Markdown."""
    text = re.sub(r"^(.+)\n=+\n", r"# \1\n", text, flags=re.MULTILINE)
    text = re.sub(r"^(.+)\n-+\n", r"## \1\n", text, flags=re.MULTILINE)
    text = re.sub(r":math:`([^`]+)`", r"$\1$", text)
    text = re.sub(r":doc:`([^<`]+) <[^>]+>`", r"*\1*", text)
    return text.replace("``", "`").strip()


def cell(kind: str, source: str, number: int) -> dict:
    lines = source.strip("\n").splitlines(keepends=True)
    content = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": lines}
    return content if kind == "markdown" else {**content, "execution_count": None, "outputs": []}


def notebook(script: str) -> dict:
    """Returns the notebook of a page of the gallery: text and code in turn, pictures inline."""
    header, *parts = re.split(r"^# %%\n", script, flags=re.MULTILINE)
    title = re.search(r'"""(.*)"""', header, re.DOTALL)[1]
    cells = [("code", "%matplotlib inline"), ("markdown", to_markdown(title))]
    for part in parts:
        text = re.match(r"(?:#.*\n)*", part)[0]
        if text:
            words = re.sub(r"^# ?", "", text, flags=re.MULTILINE)
            cells.append(("markdown", to_markdown(words)))
        if code := part[len(text) :].strip():
            cells.append(("code", code))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    numbered = [cell(kind, source, i) for i, (kind, source) in enumerate(cells)]
    return {
        "cells": numbered,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


if __name__ == "__main__":
    pages = notebook(SCRIPT.read_text(encoding="utf-8"))
    target = EXAMPLES / "quickstart.ipynb"
    target.write_text(json.dumps(pages, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"Wrote {target}")
