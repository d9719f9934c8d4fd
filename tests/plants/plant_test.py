#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-3-Clause
"""Plants bugs into small sources: the copy has them, or the reason says what to mend."""
import pathlib
import re
import subprocess
import sys
import tempfile

PLANT = pathlib.Path(__file__).resolve().parent / "plant"
SOURCE = """\
int first(int a, int b) {
  if (a == b) return 0;
  return a;
}
int second(int a) {
  return a;
}
"""
# Title, file with the bugs, and what is in the copy, or in the error.
COPIES = [
    ("a line has a bug", "-  if (a == b) return 0;\n+  if (a == b && !PLANTED(x)) return 0;\n",
     "{ if (a == b && !PLANTED(x)) return 0; return a; } int second"),
    ("a line is added", " int second(int a) {\n+  if (PLANTED(x)) return 0;\n",
     "int second(int a) { if (PLANTED(x)) return 0; return a; }"),
    ("two blocks, the later one first", "# A comment.\n int second(int a) {\n+  ++a;\n\n-if (a == b)\n+if (a)\n",
     "{ if (a) return 0; return a; } int second(int a) { ++a; return a; }"),
    ("the source is formatted otherwise", "-  if ( a==b )\n-    return\n-        0;\n+  if (b) return 0;\n",
     "{ if (b) return 0; return a;"),
]
ERRORS = [
    ("a text that is not there", "# A comment.\n\n-  if (a == c) return 0;\n+  return 0;\n",
     r"bugs:3: error: .*source does not have this text .*\n.*if \(a == c\) return 0;"),
    ("a part of a word", "-eturn 0;\n+return 1;\n", r"bugs:1: error: .* does not have this text "),
    ("words that are one in the block", "-returna;\n+return 1;\n", r"bugs:1: error: .* does not have this text "),
    ("a text that is there twice", "-  return a;\n+  return 1;\n",
     r"bugs:1: error: .*source has this text 2 times, in lines 3 and 6; "),
    ("a block without text of the source", "+  return 1;\n", r"bugs:1: error: a block needs text of the source"),
    ("blocks that share text", "-a == b\n+a\n\n-if (a == b)\n+if (b)\n", r"bugs:1: error: .* shares text"),
    ("a line with another beginning", "-  return a;\nreturn 1;\n", r"bugs:2: error: a line begins with "),
]


def plant(folder, bugs):
    """The copy, or None, and what was said."""
    source, file, copy = (pathlib.Path(folder, name) for name in ("source", "bugs", "copies/copy"))
    source.write_text(SOURCE, encoding="utf-8")
    file.write_text(bugs, encoding="utf-8")
    copy.unlink(missing_ok=True)
    run = subprocess.run([PLANT, source, file, copy], capture_output=True, text=True, check=False)
    return copy.read_text(encoding="utf-8") if run.returncode == 0 else None, run.stderr


def main():
    failed = 0

    def judge(title, right, shown):
        nonlocal failed
        failed += not right
        print(f"ok    {title}" if right else f"FAIL  {title}: {shown}")

    with tempfile.TemporaryDirectory() as folder:
        for title, bugs, expected in COPIES:
            copy, said = plant(folder, bugs)
            code = " ".join(re.sub(r"(?m)^#.*$", "", copy or "").split())
            judge(title, expected in code, said or code)
        for title, bugs, expected in ERRORS:
            copy, said = plant(folder, bugs)
            judge(f"an error says: {title}", copy is None and re.search(expected, said), said)
        copy, _ = plant(folder, "\n-  if (a == b) return 0;\n+  PLANTED(x);\n")
        lines = re.sub(r'"[^"]*/', '"', copy or "")
        judge("the compiler names the lines of both files",
              '#line 1 "source"\nint first' in lines and
              '#line 2 "bugs"\n\n  PLANTED(x);\n#line 2 "source"\n\n  return a;' in lines, copy)
    print(f"{len(COPIES) + len(ERRORS) + 1 - failed} passed, {failed} failed, 0 skipped")
    return 0 if failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
