# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Tables for a terminal."""

__all__ = ["aligned"]


def aligned(rows: list[list[str]]) -> list[str]:
    """
    Returns the lines of a table, the first column to the left and all others to the right.

    :param rows: the cells of each row, as many in all of them.

    >>> aligned([["a", "log"], ["model", "1"]])
    ['a      log', 'model    1']
    """
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(first)]
            + [cell.rjust(width) for cell, width in zip(row[1:], others, strict=True)]
        )
        for row in rows
    ]
