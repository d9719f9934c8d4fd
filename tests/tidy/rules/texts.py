# SPDX-License-Identifier: BSD-3-Clause
"""Rules that keep the documentation true: what programs accept is in their man pages, and what the
code refers to exists."""
import collections
import pathlib
import re
import subprocess

from rules.tree import Skip

PROGRAMS = ["rnbd-server", "rnbd-bridge", "rnbd-ctl"]


def man_page(tree, name):
    """Text of the man page `name` in whatever format it is written."""
    pages = [p for p in tree.files(".pod", ".1", ".5", ".8", ".in") if p.name.startswith(name)]
    if not pages:
        return None
    return "\n".join(tree.read(p) for p in pages).replace("\\-", "-")


ROW = re.compile(r'^    \{\{"([a-z][a-z0-9-]*)",(.*?)(?=^    \{\{|\Z)', re.M | re.S)


def plugin_keys(tree):
    """The tables of options of a client: the file of each, and its rows, key and rest."""
    for path in tree.code("bridge/client"):
        for table in re.findall(r"ClientOption k\w+\[\] = \{\n(.*?)\n\};", tree.read(path), re.S):
            yield path, ROW.findall(table)


def plugin_parameters(tree):
    """every parameter of the plugin's help is in its man page"""
    tables = list(plugin_keys(tree))
    page = man_page(tree, "nbdkit-rnbd-plugin")
    if not tables or page is None:
        raise Skip("there is no plugin with a man page")
    for path, rows in tables:
        if not rows:
            yield f"{path}:1: a table of keys has no entry"
        for key, rest in rows:
            if "OptionPlace::uri}" in rest:
                continue  # no parameter of its own
            if not re.search(r"(?<![\w-])" + re.escape(key) + "=", page):
                yield f"{path}:1: the parameter {key}= is missing in the plugin's man page"


def daemon_options(tree):
    """every option of the help of the programs is in their man pages"""
    programs = [name for name in PROGRAMS if tree.build and (tree.build / "bin" / name).is_file()]
    if not programs:
        raise Skip("no program is built here (--build DIRECTORY says where)")
    for name in programs:
        program, page = tree.build / "bin" / name, man_page(tree, f"{name}.")
        if page is None:
            yield f"{program}: has no man page"
            continue
        text = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=60,
                              check=True).stdout
        options = re.findall(r"^\s+(?:-\w,\s*)?(--[a-z][a-z0-9-]*)", text, re.M)
        if not options:
            yield f"{program}: --help shows no option"
        for option in options:
            if not re.search(r"(?<![\w-])" + re.escape(option) + r"(?![\w-])", page):
                yield f"{program}: the option {option} is missing in its man page"


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


def examples_of_nbdkit(tree):
    """every example that starts nbdkit with the plugin says where it listens, if it serves"""
    for path in tree.files(".md", ".pod") + tree.code("bridge/daemon"):
        for number, line in enumerate(tree.read(path).splitlines(), 1):
            command = re.search(r"nbdkit (?=[-r])[^`]*?\brnbd (?=[\w-]+[=:/+]|--)[^`]*", line)
            if command and not re.search(r" -[Ui] | --dump-plugin", command.group(0)):
                yield (f"{path}:{number}: nbdkit would listen on every address of the machine; "
                       "write -U SOCKET")


OPTION = re.compile(r"--[a-z]|\b(?:auth|server-id|[a-z]+-username)=|auth-psk|rnbds?(?:\+tcp)?://")


def options_of_programs(tree):
    """messages of rdma/ name options in the words of rdma/core/option_words.hpp, and of no program"""
    for path in tree.code("rdma"):
        if path.name == "option_words.hpp":
            continue
        for number, line in tree.lines(path):
            for text in re.findall(r'"((?:[^"\\]|\\.)*)"', line):
                if OPTION.search(text):
                    yield f'{path}:{number}: "{text}" names an option of a program'


LICENCE = "SPDX-License-Identifier: BSD-3-Clause"


def licence(tree):
    """every source file and script names its licence (SPDX)"""
    for path in tree.files():
        if "corpus" in path.parts or (tree.root / path).is_symlink():
            continue
        text = tree.read(path)
        script = path.suffix not in (".pod", ".md") and (
            path.suffix in (".sh", ".py", ".cmake") or path.name == "CMakeLists.txt" or
            text.startswith("#!"))
        if (script or path.suffix in (".cpp", ".hpp", ".h")) and LICENCE not in text[:4000]:
            yield f"{path}:1: lacks a line with {LICENCE}"


COMMENT = re.compile(r"\s*///?<? ?(.*)$")


def comment_blocks(text):
    """Yields each run of lines that are comments only: the number of its first line, and its text."""
    first, block = 0, []
    for number, line in enumerate(text.splitlines() + [""], 1):
        comment = COMMENT.match(line)
        if comment and LICENCE not in line:
            first = first if block else number
            block.append(comment.group(1))
        elif block:
            yield first, "\n".join(block)
            block = []


def sentences(block):
    """Splits a block of comments. A blank line, a list's next item and "Errors:" begin a sentence."""
    for part in re.split(r"\n(?=\s*(?:\n|[-*] |[A-Z]\d |(?:Units|Errors|Threads|Source):))", block):
        yield from re.split(r"(?<=[.:;!?])\s+(?=[A-Z`\"])", " ".join(part.split()))


def subjects_first(tree):
    """no sentence of a comment begins with What, Who or Whoever: say it as subject, verb, object"""
    for path in tree.files(".cpp", ".hpp", ".h"):
        for number, block in comment_blocks(tree.read(path)):
            for sentence in sentences(block):
                if re.match(r"(What|Who|Whoever|Whom|Whose|Whatever)\b", sentence):
                    yield f"{path}:{number}: begin '{sentence[:40]}' with its subject"


# Folders whose comments may begin so; there is no need for another one.
PRONOUNS_FIRST = {"bridge/server/mirror"}


def nouns_first(tree):
    """no comment of rdma/core, rdma/transport, bridge/server, bridge/nbd begins with a pronoun, How, Of ..."""
    for top in ("rdma/core", "rdma/transport", "bridge/server", "bridge/nbd"):
        for path in tree.code(top):
            if str(path.parent) in PRONOUNS_FIRST:
                continue
            for number, block in comment_blocks(tree.read(path)):
                if re.match(r"(It|Its|They|Their|Those|That|Others|Of|How|Whether|Why|Where)\b", block):
                    yield f"{path}:{number}: begin '{block[:40]}' with a noun"


# Longer sentences that a folder still has; the numbers only get smaller.
LONG_SENTENCES = {}
MOST_WORDS = 30


def long_sentences(tree, top):
    """(folder, violation) of each sentence in a comment that has too many words."""
    for path in tree.code(top):
        for number, block in comment_blocks(tree.read(path)):
            for sentence in sentences(block):
                if len(sentence.split()) > MOST_WORDS:
                    yield ("/".join(path.parts[:2]),
                           f"{path}:{number}: make '{sentence[:40]}' two sentences")


def short_sentences(tree):
    """no sentence of a comment in what ships has more than 30 words"""
    found = collections.defaultdict(list)
    for top in ("bridge", "nbdkit-plugin", "rdma"):
        for folder, violation in long_sentences(tree, top):
            found[folder].append(violation)
    for folder in {*found, *LONG_SENTENCES}:
        allowed = LONG_SENTENCES.get(folder, 0)
        if len(found[folder]) > allowed:
            yield from found[folder]
        elif len(found[folder]) < allowed:
            yield f"tests/tidy/rules/texts.py: {folder} has only {len(found[folder])} long sentences"


EVENT = re.compile(r'(?:\bevent = |Voice::\w+,\s+|tell\(level,\s+)"([a-z_]+)"|'
                   r'LogLevel::\w+,\s+"([a-z]+(?:_[a-z]+)+)"')


def events(tree):
    """every event that lines of the log are labelled with is in docs/operations.md"""
    told = tree.read("docs/operations.md")
    for folder in ("rdma", "bridge"):
        for path in tree.code(folder):
            for event in map("".join, EVENT.findall(tree.read(path))):
                if f"`{event}`" not in told:
                    yield f"{path}:1: the event {event} is missing in docs/operations.md"


WALK = re.compile(r"^### (.*\bstops\b.*)\n((?:(?!#).*\n)*)", re.M)
STOP = re.compile(r"^\| `([\w:]+)` \| `([\w/.-]+)` \|", re.M)


def walks(tree):
    """the walks of docs/architecture.md have as many stops as they say, each in the file that it names"""
    document = pathlib.Path("docs/architecture.md")
    for heading, table in WALK.findall(tree.read(document)):
        stops = STOP.findall(table)
        told = sum(map(int, re.findall(r"\d+", heading)))
        if told != len(stops):
            yield f'{document}: "{heading}" has {len(stops)} stops'
        for function, name in stops:
            path = pathlib.Path(name)
            known = (tree.root / path).is_file() and tree.read(path)
            if not known or not re.search(r"(?<![\w:])" + function + r"\(", known):
                yield f"{document}: there is no {function}() in {name}"


RULES = {
    walks: [("docs/architecture.md",
             "\n### Planted: 2 stops\n\n| `Disk::write` | `bridge/client/disk.cpp` | x |\n"),
            ("docs/architecture.md",
             "\n### Planted: 1 stops\n\n| `Disk::planted` | `bridge/client/disk.cpp` | x |\n")],
    events: [("rdma/planted.cpp", 'const LogAbout about{{.event = "planted"}};\n'),
             ("bridge/planted.cpp", 'say(LogLevel::info,\n    "was_planted", "a sentence");\n')],
    subjects_first: [("rdma/core/planted.hpp", f"// {LICENCE}\n// What it is.\n"),
                     ("tests/planted.cpp", "/// A path. Who has it\n/// closes it.\n")],
    nouns_first: [("rdma/core/planted.hpp", "/// It is over.\n"),
                  ("bridge/nbd/planted.cpp", "// Of a request.\n")],
    short_sentences: [("bridge/planted.hpp", "/// It" + " is" * MOST_WORDS + ".\n"),
                      ("rdma/core/planted.hpp", "// A list:\n// - it" + " is" * MOST_WORDS + ".\n")],
    licence: [("rdma/core/planted.hpp", "#pragma once\n"), ("tests/planted", "#!/bin/sh\n")],
    options_of_programs: [("rdma/core/planted.cpp", 'const char* why = "too many (--planted)";\n'),
                          ("rdma/planted.cpp", 'const char* why = "write rnbds+tcp://";\n')],
    plugin_parameters: [("bridge/client/aaa.cpp",
                         'constexpr ClientOption kOptions[] = {\n    {{"planted", "N", "x"}},\n};\n'),
                        ("bridge/client/aaa.cpp", "constexpr ClientOption kOptions[] = {\n\n};\n")],
    daemon_options: [("planted/bin/rnbd-server", "#!/bin/sh\necho '  -p,--planted N   x'\n"),
                     ("planted/bin/rnbd-server", "#!/bin/sh\necho 'says nothing'\n")],
    references: [("rdma/wire/planted.hpp", "/// Source: docs/protocol.md, planted section.\n"),
                 ("rdma/wire/planted.hpp", "/// Source: docs/protocol.md, heartbeats, planted.\n")],
    examples_of_nbdkit: [("docs/operations.md", "    nbdkit rnbd rnbd+tcp://storage/disk0\n"),
                         ("docs/hacking.md", "\n`nbdkit -f rnbd server=storage`\n"),
                         ("nbdkit-plugin/nbdkit-rnbd-plugin.pod",
                          " nbdkit --filter=cow rnbd rnbd://storage/disk0\n")],
}
