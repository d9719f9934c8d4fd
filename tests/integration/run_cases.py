# SPDX-License-Identifier: BSD-3-Clause
"""The cases of a script: each is run, and one that fails ends none of the others."""
import sys
import traceback


def run_cases(cases, run=lambda case: case(), after=lambda: None):
    """cases: pairs of a name and a function, for run(). after() follows each, whatever came of it.

    Prints a line per case and leaves with status 1 when one failed or there is none.
    """
    failures = 0
    for name, case in cases:
        title = name.replace("_", " ")
        try:
            run(case)
            print("ok  ", title, flush=True)
        except Exception:  # the next case may still tell something
            failures += 1
            print("FAIL", title)
            traceback.print_exc(file=sys.stdout)
        after()
    print(f"{len(cases)} cases, {failures} failed")
    sys.exit(1 if failures or not cases else 0)
