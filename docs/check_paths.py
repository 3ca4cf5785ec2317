# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Walks the built site as somebody would who knows NumPyro and not this package:

    python docs/check_paths.py docs/_build

Each question must be answered on a page that is at most two clicks from the start page: a link whose words, or whose heading's,
name what is looked for, to a page that has the words of the answer. Fails with the question that is not answered.
"""

from html.parser import HTMLParser
from pathlib import Path
import re
import sys
from typing import NamedTuple
from urllib.parse import unquote, urldefrag

MOST_CLICKS = 2


class Question(NamedTuple):
    """A question: words of a link, any of which one would click on, and all that the page must then say."""

    words: str
    clicked: str
    answers: tuple[str, ...]


QUESTIONS = (
    Question(
        "How do I compare two models?",
        r"compar",
        (r"\bcompare\s*\(", r"Bayes factor", r"Priors matter"),
    ),
    Question(
        "My k-hat is 0.8: what does it mean, and what do I do?",
        r"k-hat|warning|read",
        (r"do not trust the error", r"as 0\.8 is", r"larger\s+budget"),
    ),
    Question("How do I run on four devices?", r"device", (r"jax\.devices\(\)", r"\bdevices?\b")),
    Question(
        "I have draws of NUTS: how do I go on?",
        r"NUTS|draws",
        (r"posterior_samples\s*=\s*mcmc", r"\.sandwich\s*\(", r"upper"),
    ),
)


class Page(HTMLParser):
    """The links of a page, each with its words, and the words of the page's main part."""

    # Tags that are never closed.
    VOID = frozenset(("area", "base", "br", "col", "hr", "img", "input", "link", "meta", "wbr"))

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self._words: list[str] = []
        self._article = 0
        self._open: list[list] = []
        self.feed(text)
        self.text = re.sub(r"\s+", " ", "".join(self._words))

    def handle_starttag(self, tag: str, attrs: list) -> None:
        attributes = dict(attrs)
        if tag == "a" and attributes.get("href"):
            self._open.append([attributes["href"], ""])
        if self._article and tag not in self.VOID:
            self._article += 1
        if tag == "article":
            self._article = max(self._article, 1)

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self._open:
            href, words = self._open.pop()
            self.links.append((href, words.strip()))
        if self._article and tag not in self.VOID:
            self._article -= 1

    def handle_data(self, data: str) -> None:
        for link in self._open:
            link[1] += data
        if self._article:
            self._words.append(data)


def read(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def clicks(page: Path, words: str, root: Path) -> list[Path]:
    """The pages of the site behind the links of a page whose words match."""
    targets = []
    for href, text in read(page).links:
        target = (page.parent / unquote(urldefrag(href).url)).resolve()
        if re.search(words, text, re.IGNORECASE) and target.is_file() and root in target.parents:
            targets.append(target)
    return list(dict.fromkeys(targets))


def walk(question: Question, root: Path) -> list[Path] | None:
    """The pages of the shortest way to the answer, or None."""
    ways = [[root / "index.html"]]
    for _ in range(MOST_CLICKS):
        ways = [[*way, page] for way in ways for page in clicks(way[-1], question.clicked, root)]
        for way in ways:
            text = read(way[-1]).text
            if all(re.search(answer, text) for answer in question.answers):
                return way
    return None


def main(site: str) -> int:
    root = Path(site).resolve()
    lost = 0
    for question in QUESTIONS:
        way = walk(question, root)
        names = " > ".join(page.relative_to(root).as_posix() for page in way) if way else "NO WAY"
        print(f"{question.words:<60} {names}")
        lost += way is None
    return lost


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
