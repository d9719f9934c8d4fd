"""Rules that keep the documentation true: what programs accept is in their man pages, and what the
code refers to exists."""
import re
import subprocess

from rules.tree import Skip

STRINGS = r'(?:"(?:[^"\\]|\\.)*"\s*|R"\w*\(.*?\)\w*"\s*)+'


def man_page(tree, name):
    """Text of the man page `name` in whatever format it is written."""
    pages = [p for p in tree.files(".pod", ".1", ".5", ".8", ".in") if p.name.startswith(name)]
    if not pages:
        return None
    return "\n".join(tree.read(p) for p in pages).replace("\\-", "-")


def text_of(literals):
    """What adjacent C++ string literals say."""
    text = ""
    for raw, plain in re.findall(r'R"\w*\((.*?)\)\w*"|"((?:[^"\\]|\\.)*)"', literals, re.S):
        text += raw or plain.replace("\\n", "\n").replace('\\"', '"')
    return text


def config_help(tree):
    """The text that `nbdkit PLUGIN --help` prints, and the file that it is in."""
    for path in tree.code("nbdkit-plugin"):
        match = re.search(r"config_?help\w*(?:\[\])?\s*=\s*(" + STRINGS + ")", tree.read(path), re.S | re.I)
        if match:
            return path, text_of(match.group(1))
    return None, ""


def plugin_parameters(tree):
    """every parameter of the plugin's help is in its man page"""
    path, text = config_help(tree)
    page = man_page(tree, "nbdkit-rnbd-plugin")
    if path is None or page is None:
        raise Skip("there is no plugin with a man page")
    for key in re.findall(r"^\s*(?:\(\w+\)\s*)?([a-z][a-z0-9_-]*)=", text, re.M):
        if not re.search(r"(?<![\w-])" + re.escape(key) + "=", page):
            yield f"{path}:1: the parameter {key}= is missing in the plugin's man page"


def daemon_options(tree):
    """every option of rnbd-server's help is in its man page"""
    page = man_page(tree, "rnbd-server.")
    if page is None:
        raise Skip("rnbd-server has no man page")
    program = tree.build / "bin/rnbd-server" if tree.build else None
    if program is None or not program.is_file():
        raise Skip("rnbd-server is not built here (--build DIRECTORY says where)")
    text = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=60,
                          check=True).stdout
    options = re.findall(r"^\s+(?:-\w,\s*)?(--[a-z][a-z0-9-]*)", text, re.M)
    if not options:
        yield f"{program}: --help shows no option"
    for name in options:
        if not re.search(r"(?<![\w-])" + re.escape(name) + r"(?![\w-])", page):
            yield f"{program}: the option {name} is missing in the man page of rnbd-server"


def normalized(heading):
    """A heading without number, markup and case, so that references stay readable."""
    return re.sub(r"[`*]|^[\d.]+\s*", "", heading).strip().lower()


def references(tree):
    """`Source: docs/protocol.md, section` names sections that exist"""
    document = "docs/protocol.md"
    if not (tree.root / document).is_file():
        raise Skip(f"there is no {document}")
    headings = {normalized(h) for h in re.findall(r"^#+ (.*)$", tree.read(document), re.M)}
    for path in tree.code():
        for number, line in enumerate(tree.read(path).splitlines(), 1):
            match = re.search(r"Source:\s*docs/protocol\.md, ([^;]+?)\.?(?:;.*)?$", line)
            for section in match.group(1).split(", ") if match else []:
                if normalized(section) not in headings:
                    yield f"{path}:{number}: {document} has no section \"{section}\""


RULES = {
    plugin_parameters: [("nbdkit-plugin/aaa.cpp",
                         'p.config_help = "server=ADDRESS  one\\n"\n  "planted=1  two";\n')],
    daemon_options: [("planted/bin/rnbd-server", "#!/bin/sh\necho '  -p,--planted N   x'\n"),
                     ("planted/bin/rnbd-server", "#!/bin/sh\necho 'says nothing'\n")],
    references: [("rdma/wire/planted.hpp", "/// Source: docs/protocol.md, planted section.\n"),
                 ("rdma/wire/planted.hpp", "/// Source: docs/protocol.md, heartbeats, planted.\n")],
}
