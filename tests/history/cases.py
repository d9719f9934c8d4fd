# SPDX-License-Identifier: BSD-3-Clause
"""Test cases that print what the scripts of tests/integration do, and are counted the same way."""
import os
import re
import time
import traceback


class Failed(Exception):
    """A case has failed; the message says why, in one line."""


class Skipped(Exception):
    """A case cannot run here; the message says why."""


class Cases:
    """Runs cases and counts them. ONLY=REGEX picks some by title."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def it(self, title, function, *arguments):
        if not re.search(os.environ.get("ONLY", ""), title):
            return
        began = time.monotonic()
        try:
            more = function(*arguments)
        except Skipped as reason:
            self.skipped += 1
            print(f"skip  {title}: {reason}", flush=True)
            return
        except Failed as reason:
            self.failed += 1
            print(f"FAIL  {title}: {reason}", flush=True)
            return
        except Exception:  # pylint: disable=broad-except
            self.failed += 1
            lines = traceback.format_exc().splitlines()
            print(f"FAIL  {title}: {lines[-1]}", *lines, sep="\n      | ", flush=True)
            return
        self.passed += 1
        print(f"ok    {title} ({time.monotonic() - began:.1f} s)" + (f": {more}" if more else ""), flush=True)

    def finish(self):
        """The exit status."""
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped", flush=True)
        return 1 if self.failed or not self.passed else 0
