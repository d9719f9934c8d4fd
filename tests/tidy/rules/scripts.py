# SPDX-License-Identifier: BSD-3-Clause
"""Rules for scripts: they can be started, and shellcheck has nothing to say."""
import os
import shutil
import subprocess

from rules.tree import Skip


def first_line(tree, path):
    with open(tree.root / path, "rb") as file:
        return file.readline(200)


def run_bits(tree):
    """what begins with #! can be started"""
    for path in tree.files():
        if first_line(tree, path).startswith(b"#!") and not os.access(tree.root / path, os.X_OK):
            yield f"{path}:1: begins with #! but lacks the run bit (chmod +x {path})"


def shellcheck(tree):
    """shell scripts are clean for shellcheck"""
    if not shutil.which("shellcheck"):
        raise Skip("shellcheck is not installed (apt-get install shellcheck)")
    shells = [p for p in tree.suspects()
              if first_line(tree, p).split(b"/")[-1].strip() in (b"sh", b"bash", b"env bash")]
    runs = [subprocess.Popen(["shellcheck", "--external-sources", "--format=gcc", *map(str, part)],
                             cwd=tree.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for part in (shells[i::os.cpu_count()] for i in range(os.cpu_count())) if part]
    for run in runs:
        told, trouble = run.communicate()
        yield from told.splitlines()
        if run.returncode > 1:
            yield f"shellcheck could not run: {trouble.strip()}"


shellcheck.alone = True


RULES = {
    run_bits: [("planted", "#!/bin/sh\n"), ("tests/planted.py", "#!/usr/bin/python3\n")],
    shellcheck: [("planted.sh", "#!/bin/sh\nrm -rf $1/*\n"), ("planted", "#!/bin/bash\ncd /x\n")],
}
