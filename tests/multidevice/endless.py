# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Runs over two hosts, one after the other, for ever; the tests kill one of them."""

import sys

from tests.multidevice import layouts

if __name__ == "__main__":
    layouts.begin(sys.argv[1:])
    run = layouts.cases()["settings"]
    while True:
        run()
        print("running", flush=True)
