# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""A progress bar that a compiled chain can move."""

from collections.abc import Callable

import jax
from jax import lax
from tqdm.auto import tqdm

__all__ = ["ProgressBar"]


class ProgressBar:
    """
    Shows how far the steps of a compiled chain are.

    NumPyro's own bar belongs to one trace; this one opens anew on every run of the same program.

    :param title: what is running.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self._bar: tqdm | None = None

    def make_callback(self, num_steps: int, num_chunks: int) -> Callable[[jax.Array], None]:
        """
        Returns a function to be called with the index of each step while it is traced.

        :param num_steps: the number of steps of a chain.
        :param num_chunks: how many times in a row the chain is run, for a part of the particles each.
        """
        rate = max(1, num_steps // 50)

        def update(index: int) -> None:
            if self._bar is None:
                self._bar = tqdm(total=num_steps * num_chunks, desc=self.title, unit="step")
            self._bar.update(min(rate, num_steps - int(index)))
            if self._bar.n >= self._bar.total:
                self._bar.close()
                self._bar = None

        def on_step(index: jax.Array) -> None:
            lax.cond(
                index % rate == 0,
                lambda: jax.debug.callback(update, index, ordered=False),
                lambda: None,
            )

        return on_step
