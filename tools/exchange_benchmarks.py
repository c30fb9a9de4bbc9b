#!/usr/bin/env python3
"""The exchange measured in the lab: strategies at set ratios, two stages against one, links, overlap, the simulator (docs/lab.md)."""

import sys

from labkit.exchange.commands import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
