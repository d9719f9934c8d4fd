# SPDX-License-Identifier: BSD-3-Clause
"""The source tree as the rules see it."""
import contextlib
import os
import pathlib
import re


class Skip(Exception):
    """A rule cannot be checked here; the message says why."""


class Tree:
    """Files of the project, without build folders and version control."""

    def __init__(self, root, build=None):
        self.root = pathlib.Path(root).resolve()
        self.build = pathlib.Path(build).resolve() if build else None  # where programs are, if built
        self.plant = None  # the file that is planted now

    def files(self, *suffixes, under=""):
        """Paths relative to the root, sorted; suffixes such as '.cpp', none = every file."""
        found = []
        for folder, folders, names in os.walk(self.root / under):
            folders[:] = sorted(f for f in folders if not self._foreign(folder, f))
            for name in names:
                path = pathlib.Path(folder, name)
                if path.is_file() and (not suffixes or path.suffix in suffixes):
                    found.append(path.relative_to(self.root))
        return sorted(found)

    def suspects(self):
        """For rules that look at each file alone and take long: the planted one, or all."""
        return [self.plant] if self.plant else self.files()

    def _foreign(self, folder, name):
        at_root = pathlib.Path(folder) == self.root
        return name.startswith(".") or name == "__pycache__" or (
            at_root and name.startswith("build"))

    def read(self, path):
        return (self.root / path).read_text(encoding="utf-8", errors="replace")

    def code(self, under=""):
        return self.files(".hpp", ".cpp", ".h", under=under)

    def lines(self, path):
        """(number, text) of each line without // comments."""
        for number, line in enumerate(self.read(path).splitlines(), 1):
            yield number, re.sub(r"(?<!:)//.*", "", line)

    @contextlib.contextmanager
    def planted(self, path, text):
        """For the self-test: the tree with text added to a file, which is created if need be."""
        file = self.root / path
        before = file.read_bytes() if file.exists() else None
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes((before or b"") + text.encode())
        if "/bin/" in path:
            file.chmod(0o755)
        self.plant = pathlib.Path(path)
        try:
            yield
        finally:  # a rule that cannot be checked raises Skip
            self.plant = None
            if before is None:
                file.unlink()
            else:
                file.write_bytes(before)
