# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Progress bars: one that a compiled chain can move, and one of a run that goes in rounds."""

from collections.abc import Callable

import jax
from jax import lax
from tqdm.auto import tqdm

__all__ = ["RoundsBar", "progress_callback"]

# The bars that are open, by title: programs are shared, and a bar belongs to one run of one.
_bars: dict[str, tqdm] = {}


def progress_callback(title: str, num_steps: int, num_chunks: int) -> Callable[[jax.Array], None]:
    """
    Returns a function to be called with the index of each step while it is traced; it moves a bar
    that opens anew on every run of the same program, where NumPyro's own belongs to one trace.

    :param title: of the bar.
    :param num_steps: the number of steps of a chain.
    :param num_chunks: how many times in a row the chain is run, for a part of the particles each.
    """
    rate = max(1, num_steps // 50)

    def update(index: int) -> None:
        if title not in _bars:
            _bars[title] = tqdm(total=num_steps * num_chunks, desc=title, unit="step")
        bar = _bars[title]
        bar.update(min(rate, num_steps - int(index)))
        if bar.n >= bar.total:
            bar.close()
            del _bars[title]

    def on_step(index: jax.Array) -> None:
        lax.cond(
            index % rate == 0,
            lambda: jax.debug.callback(update, index, ordered=False),
            lambda: None,
        )

    return on_step


class RoundsBar:
    """
    A bar of a run that goes in rounds, over the gradients of its budget.

    :param title: of the bar.
    :param budget: gradients at most.
    """

    def __init__(self, title: str, budget: int) -> None:
        self._bar = tqdm(total=budget, desc=title, unit="gradient")

    def advance(self, num_gradients: int) -> None:
        """Moves the bar by some gradients."""
        self._bar.update(min(num_gradients, self._bar.total - self._bar.n))

    def show(self, num_steps: int, num_gradients: int, estimate: str) -> None:
        """
        Shows the estimate of a round.

        :param num_steps: the number of steps of its chains.
        :param num_gradients: gradients up to its end.
        :param estimate: its estimate, with the error.
        """
        self._bar.n = min(num_gradients, self._bar.total)
        self.say(f"{num_steps} steps: {estimate}")

    def say(self, words: str) -> None:
        """Shows some words beside the bar."""
        self._bar.set_postfix_str(words)

    def close(self) -> None:
        """Closes the bar."""
        self._bar.close()
