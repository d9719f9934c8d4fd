# SPDX-License-Identifier: BSD-3-Clause
"""What each folder may include. Arrows only go down, and the pure parts stay pure."""
import collections
import pathlib
import re

# In rdma/wire and rdma/core: nothing whose result depends on hash order, threads or clocks.
PURE = {
    "algorithm", "array", "atomic", "bit", "bitset", "cassert", "cerrno", "charconv", "chrono",
    "cinttypes", "climits", "compare", "concepts", "cstddef", "cstdint", "cstdio", "cstdlib", "cstring",
    "deque", "functional", "initializer_list", "iterator", "limits", "list", "map", "memory",
    "numeric", "optional", "queue", "set", "span", "string", "string_view", "system_error",
    "tuple", "type_traits", "utility", "variant", "vector", "tl/expected.hpp",
    "sys/sdt.h",  # macros that are a nop each
    # SHA-256 and its MAC: functions of bytes.
    "nettle/hmac.h", "nettle/memops.h", "nettle/sha2.h",
}

# The headers of rdma/ (rdma/client.hpp, ...) are interfaces that rdma/transport implements, so they
# lie below it.
ROOTS = ["rdma/client.hpp", "rdma/memory_path.hpp", "rdma/server.hpp", "rdma/log.hpp", "rdma/complaint_log.hpp",
         "rdma/audit_line.hpp", "rdma/printable.hpp", "rdma/client_log.hpp", "rdma/duration.hpp", "rdma/control_group.hpp",
         "rdma/descriptor_reserve.hpp",
         "rdma/failure.hpp",
         "rdma/host_name.hpp", "rdma/line_limit.hpp", "rdma/log_about.hpp", "rdma/mailbox.hpp", "rdma/memlock.hpp", "rdma/network.hpp", "rdma/one_call.hpp", "rdma/owned_fd.hpp", "rdma/path_address.hpp", "rdma/path_list.hpp",
         "rdma/server_id.hpp",
         "rdma/tls.hpp"]
CORE = ["rdma/core/", "rdma/wire/"]
RTRS = ROOTS + CORE + ["rdma/transport/reactor.hpp"]

# Folder -> what its files may include besides the folder itself (ROOTS: not rdma/ as a whole).
# The longest match counts. FOLDER/* stands for the files of a folder without its subfolders.
MAY_INCLUDE = {
    "rdma/wire/": [],
    "rdma/core/": ["rdma/wire/"],
    "rdma/": ROOTS + CORE,
    "rdma/transport/": ROOTS + CORE,
    "rdma/library/": ROOTS + CORE + ["rdma/transport/reactor.hpp"],
    "bridge/protocol/": ["rdma/wire/", "rdma/printable.hpp"],
    "bridge/backend/": ROOTS + ["bridge/protocol/closest.hpp", "bridge/protocol/printable.hpp",
                                "rdma/core/time.hpp", "rdma/transport/reactor.hpp",
                                "rdma/transport/readiness.hpp"],
    "bridge/control/": ROOTS,
    "bridge/metrics/": ["rdma/printable.hpp"],
    "bridge/client/": RTRS + ["bridge/protocol/", "bridge/control/", "bridge/metrics/exposition.hpp"],
    "bridge/library/": RTRS + ["bridge/client/", "bridge/protocol/", "rdma/library/"],
    "bridge/librnbd/": RTRS + ["bridge/client/", "bridge/control/", "bridge/nbd/call_pool.hpp", "bridge/protocol/",
                               "rdma/library/birthplace.hpp", "rdma/library/gate.hpp", "rdma/library/options.hpp"],
    "bridge/nbd/": RTRS + ["bridge/client/", "bridge/metrics/", "bridge/protocol/",
                           "bridge/control/unix_socket.hpp",
                           "rdma/transport/tls/", "rdma/transport/tcp/stream.hpp"],
    "bridge/kernel/": ROOTS + ["bridge/client/", "bridge/nbd/", "bridge/protocol/"],
    "bridge/vhost/": RTRS + ["bridge/client/", "bridge/control/unix_socket.hpp", "bridge/metrics/",
                             "bridge/nbd/buffer_pool.hpp", "bridge/nbd/call_pool.hpp",
                             "bridge/nbd/exports.hpp", "bridge/protocol/"],
    "bridge/server/": RTRS + ["bridge/metrics/", "bridge/protocol/", "bridge/backend/"],
    "bridge/daemon/": ROOTS + ["bridge/daemon/*", "bridge/client/", "bridge/control/", "bridge/metrics/",
                               "bridge/protocol/"],
    "bridge/daemon/server/": RTRS + ["bridge/daemon/*", "bridge/backend/", "bridge/client/",
                                     "bridge/control/", "bridge/metrics/", "bridge/nbd/call_pool.hpp",
                                     "bridge/protocol/", "bridge/server/", "rdma/transport/tls/"],
    "bridge/daemon/bridge/": ROOTS + ["bridge/daemon/*", "bridge/client/", "bridge/control/",
                                      "bridge/kernel/", "bridge/metrics/", "bridge/nbd/",
                                      "bridge/protocol/", "rdma/transport/tls/"],
    "bridge/daemon/bridge/vhost/": ROOTS + ["bridge/control/", "bridge/daemon/bridge/annex.hpp",
                                            "bridge/vhost/"],
    "bridge/ctl/": ROOTS + ["bridge/daemon/*", "bridge/backend/specification.hpp", "bridge/client/",
                            "bridge/control/", "bridge/kernel/", "bridge/protocol/",
                            "rdma/transport/tls/"],
    "nbdkit-plugin/": RTRS + ["bridge/client/", "bridge/control/", "bridge/protocol/"],
}
# Folders whose files must not include all that is below them.
SPLIT = {"rdma/", "bridge/daemon/"}
TOP = {"rdma", "bridge", "nbdkit-plugin"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
INTEGER = re.compile(r"\bstd::u?int(?:_fast|_least)?(?:8|16|32|64|max|ptr)_t\b")
CLOCK = re.compile(r"::now\s*\(|\b(?:clock_gettime|gettimeofday|std::time|std::clock)\s*\(")


def includes(tree, path):
    """(line number, is_quoted, name) of each include."""
    for number, line in tree.lines(path):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1) == '"', match.group(2)


def pure_includes(tree):
    """rdma/wire and rdma/core include nothing outside a short list"""
    for path in tree.code("rdma/wire") + tree.code("rdma/core"):
        for number, quoted, name in includes(tree, path):
            if not quoted and name not in PURE:
                yield f"{path}:{number}: <{name}> is not on the list of what pure code may include"


def is_in(name, place):
    """whether a file is that one, in that folder, or in FOLDER/*"""
    if place.endswith("/*"):
        return name.startswith(place[:-1]) and "/" not in name[len(place) - 1:]
    return name.startswith(place)


def arrows(tree):
    """includes only go down: wire <- core <- transport <- bridge <- plugin"""
    for path in tree.code():
        if path.parts[0] not in TOP:
            continue
        folder = max((f for f in MAY_INCLUDE if str(path).startswith(f)), key=len, default=None)
        if folder is None:
            yield f"{path}:1: say in tests/tidy/rules/layers.py what files of this folder may include"
            continue
        allowed = MAY_INCLUDE[folder]
        own = [] if folder in SPLIT else [folder]
        for number, quoted, name in includes(tree, path):
            if not quoted:
                continue
            if not (tree.root / name).is_file():
                yield f"{path}:{number}: \"{name}\" is no file of this project, seen from its root"
            elif not any(is_in(name, a) for a in own + allowed):
                yield f"{path}:{number}: files in {folder} must not include {name}"


def tests_included(tree):
    """what ships includes nothing from tests/"""
    for path in tree.code():
        if path.parts[0] in TOP:
            for number, _, name in includes(tree, path):
                if name.startswith("tests/"):
                    yield f"{path}:{number}: {name} belongs to the tests"


def planted_bugs(tree):
    """no bug is planted in what ships: tests/plants has them all"""
    for path in tree.code():
        if path.parts[0] in TOP:
            for number, line in enumerate(tree.read(path).splitlines(), 1):
                if "PLANTED" in line:
                    yield f"{path}:{number}: plant the bug in a block of tests/plants/{path}.plants"


def reaches_cstdint(tree, path, seen):
    """whether a file includes <cstdint>, itself or through headers of the project"""
    if path in seen:
        return False
    seen.add(path)
    for _, _, name in includes(tree, path):
        if name == "cstdint":
            return True
        for place in ("", "rdma/library/include"):
            header = pathlib.PurePath(place, name)
            if (tree.root / header).is_file() and reaches_cstdint(tree, header, seen):
                return True
    return False


def integers(tree):
    """who names std::uint64_t includes <cstdint>, or a header of the project that does"""
    for path in tree.code():
        for number, line in tree.lines(path):
            if INTEGER.search(line):
                if not reaches_cstdint(tree, path, set()):
                    yield f"{path}:{number}: std's integers need <cstdint>; other libraries' headers lack it"
                break


def plugin_header(tree):
    """nbdkit-plugin.h is included in nbdkit-plugin/ only"""
    for path in tree.code():
        for number, _, name in includes(tree, path):
            if name == "nbdkit-plugin.h" and path.parts[0] != "nbdkit-plugin":
                yield f"{path}:{number}: only nbdkit-plugin/ knows nbdkit-plugin.h"


def gnutls_header(tree):
    """GnuTLS is included in rdma/transport/tls/ only, and by the test's peer with bad manners"""
    allowed = ("rdma/transport/tls/", "tests/unit/transport/tls_raw_peer.cpp")
    for path in tree.code():
        for number, _, name in includes(tree, path):
            if name.startswith("gnutls/") and not str(path).startswith(allowed):
                yield f"{path}:{number}: only rdma/transport/tls/ knows GnuTLS"


def clocks(tree):
    """rdma/wire and rdma/core read no clock"""
    for path in tree.code("rdma/wire") + tree.code("rdma/core"):
        for number, line in tree.lines(path):
            if CLOCK.search(line):
                yield f"{path}:{number}: the time is an argument here, never read from a clock"


NAMESPACE = re.compile(r"^namespace(?: ([\w:]+))? \{")
CLASS = re.compile(r"^(?:struct|class|union|enum class) (?:alignas\(\S+\) )?(\w+)(?: final)?(?:\s*:\s[^;]*)?\s*\{")


def classes(tree, path):
    """(line number, qualified name) of each class at the outermost level that others can name."""
    spaces = []
    for number, line in tree.lines(path):
        if match := NAMESPACE.match(line):
            spaces.append(match[1])
        elif line.startswith("}") and not line.startswith("};") and spaces and not line[1:].strip():
            spaces.pop()
        elif (match := CLASS.match(line)) and spaces and None not in spaces:
            yield number, "::".join([*spaces, match[1]])


def one_definition(tree):
    """a class of one name is defined once: whoever links two gets a mixture of both"""
    found = collections.defaultdict(list)
    for path in (path for top in sorted(TOP) for path in tree.code(top)):
        for number, name in classes(tree, path):
            found[name].append(f"{path}:{number}")
    for name, places in found.items():
        if len(places) > 1:
            yield f"{places[-1]}: {name} is also defined at {places[0]}"


# Annexes: their words, and the paths of what is theirs. Beside that, the files that may name them:
# lines of tables. The list may only become shorter.
ANNEXES = {
    "mirror": (re.compile(r"mirror|\bSeat\b", re.I), re.compile(r"mirror|member"), {
        "bridge/client/annexes.cpp", "bridge/client/schemes.cpp", "bridge/ctl/annexes.cpp",
        "bridge/daemon/server/annexes.cpp"}),
    # librtrs has functions for bricks.
    "brick": (re.compile(r"brick", re.I), re.compile(r"brick|^rdma/library/"), {
        "bridge/backend/factory.cpp", "bridge/client/annexes.cpp", "bridge/ctl/annexes.cpp",
        "bridge/daemon/server/annexes.cpp"}),
    "librnbd": (re.compile(r"librnbd|rnbd_disk", re.I), re.compile(r"librnbd"), set()),
    "vhost": (re.compile(r"vhost|virtio", re.I), re.compile(r"vhost"), {
        "bridge/daemon/bridge/annexes.cpp"}),
}


def annexes(tree):
    """only lines of tables name an annex outside its own files"""
    for name, (word, own, allowed) in ANNEXES.items():
        named = set()
        for path in tree.code():
            if path.parts[0] not in TOP or own.search(str(path)):
                continue
            for number, line in enumerate(tree.read(path).splitlines(), 1):
                if word.search(line):
                    named.add(str(path))
                    if str(path) not in allowed:
                        yield f"{path}:{number}: this names {name}; let a table of annexes lead to it"
        for path in sorted(allowed - named):
            yield f"{path}:1: it names {name} no more; take it from ANNEXES in tests/tidy/rules/layers.py"


# What both executors of ClientMachine define: they perform actions and report events. All else is
# decided by the machine.
PERFORMERS = {"allow", "attach", "close", "connect", "fail", "fail_overdue", "fail_writes", "feed",
              "look", "lose", "perform", "perform_all", "recover", "recovered", "schedule_look",
              "shut_down", "start"}
# Likewise of ServerMachine: the calls of its interfaces, and what they need.
SERVER_PERFORMERS = {"add", "add_path", "admit", "close", "forget", "leaves", "let_others_go",
                     "progress", "read", "report", "send_rest", "serves"}
# For ServerPath and questions: memory, users.
SERVER_PERFORMERS |= {"await_memory", "discard", "give_back", "go_on", "provide_chunks", "user",
                      "show_life_later", "wake"}
# Of DeviceTable: they send messages, wait, and tell users (there: the checker) of the outcome.
DEVICE_PERFORMERS = {"connect", "join", "reopen", "reopened",
                     "reopening_failed", "start"}
CLIENT_EXECUTORS = ["ClientDriver", "ClientLanes", "PathDrivers", "PathDirectory", "FirstAttempts",
                    "SessionRecovery", "BackgroundJobs"]
BRAINS = [("ClientMachine", PERFORMERS, "rdma/transport", CLIENT_EXECUTORS, ["ClientDriver"]),
          ("ServerMachine", SERVER_PERFORMERS, "rdma/transport", ["SessionHost", "PathHost"],
           ["ServerHost", "ServerPathHost"]),
          ("DeviceTable", DEVICE_PERFORMERS, "bridge/client", ["Session"], ["ClientNode"])]
METHOD = re.compile(r"(?:^|[ *&])(\w+)::(\w+)\(")


def methods(tree, folder, classes):
    """name -> place, of the functions of these classes; _on_io is a remark about threads"""
    return {match[2].removesuffix("_on_io"): f"{path}:{number}"
            for path in tree.code(folder)
            for number, line in tree.lines(path)
            if not line.startswith(" ") and (match := METHOD.search(line))
            and match[1] in classes and match[2] not in classes}


def one_brain(tree):
    """the simulator's executors have no copy of what the shipped ones decide"""
    for machine, performers, folder, ours, theirs in BRAINS:
        shipped = methods(tree, folder, ours)
        simulated = methods(tree, "tests/sim", theirs)
        for name, place in simulated.items():
            if name in shipped and name not in performers:
                yield (f"{place}: {name}() is also defined at {shipped[name]}; "
                       f"let {machine} decide it")
        for name in sorted(performers - (shipped.keys() & simulated.keys())):
            yield (f"tests/tidy/rules/layers.py: {name}() is no function of both executors of "
                   f"{machine} any more; take it from the list")


# Rule -> violations that it must notice: (file, text to add).
def installed_headers(tree):
    """installed headers include the system's, and each other by the installed name"""
    for folder in ("rdma/library/include", "bridge/librnbd/include"):
        own = {path.name for path in tree.code(folder)}
        for path in tree.code(folder):
            for number, quoted, name in includes(tree, path):
                if quoted or ("/" in name and not name.startswith("sys/")) or (
                        name.endswith(".hpp") and name not in own):
                    yield f"{path}:{number}: {name} is not there where the library is installed"


RULES = {
    installed_headers: [("rdma/library/include/rtrs.hpp", '#include "rdma/client.hpp"\n'),
                        ("rdma/library/include/rtrs.h", "#include <tl/expected.hpp>\n"),
                        ("bridge/librnbd/include/rnbd.h", '#include "rdma/client.hpp"\n')],
    pure_includes: [("rdma/core/planted.cpp", f"#include <{name}>\n") for name in (
        "thread", "mutex", "random", "unordered_map", "boost/asio/io_context.hpp",
        "infiniband/verbs.h", "iostream")] + [("rdma/wire/planted.hpp", "#include <mutex>\n")],
    arrows: [
        ("rdma/wire/planted.hpp", '#include "rdma/core/time.hpp"\n'),
        ("rdma/core/planted.hpp", '#include "rdma/client.hpp"\n'),
        ("rdma/core/planted.cpp", '#  include "rdma/transport/reactor.hpp"\n'),
        ("rdma/planted.hpp", '#include "rdma/transport/reactor.hpp"\n'),
        ("rdma/transport/tcp/planted.cpp", '#include "bridge/protocol/messages.hpp"\n'),
        ("bridge/protocol/planted.hpp", '#include "bridge/backend/backend.hpp"\n'),
        ("bridge/control/planted.hpp", '#include "bridge/client/session.hpp"\n'),
        ("bridge/client/planted.hpp", '#include "bridge/backend/backend.hpp"\n'),
        ("bridge/server/planted.cpp", '#include "rdma/transport/connection.hpp"\n'),
        ("bridge/planted.cpp", '#include "rdma/log.hpp"\n'),
        ("bridge/daemon/planted.cpp", '#include "bridge/daemon/server/settings.hpp"\n'),
        ("bridge/daemon/server/planted.cpp", '#include "bridge/daemon/bridge/options.hpp"\n'),
        ("bridge/daemon/bridge/planted.cpp", '#include "bridge/daemon/server/settings.hpp"\n'),
        ("bridge/daemon/bridge/planted.cpp", '#include "bridge/server/catalogue.hpp"\n'),
        ("bridge/ctl/planted.cpp", '#include "bridge/daemon/server/settings.hpp"\n'),
        ("nbdkit-plugin/planted.cpp", '#include "bridge/backend/backend.hpp"\n'),
        ("nbdkit-plugin/planted.cpp", '#include "bridge/nbd/front.hpp"\n'),
        ("bridge/client/planted.cpp", '#include "geometry.hpp"\n'),
    ],
    annexes: [("bridge/server/planted.cpp", "// The mirror's rule.\n"),
              ("rdma/core/planted.hpp", "class Brick;\n"),
              ("bridge/nbd/planted.hpp", "// A queue of virtio.\n")],
    tests_included: [("bridge/client/planted.cpp", '#include "tests/fuzz/fuzz.hpp"\n')],
    planted_bugs: [("rdma/core/planted.cpp", "  if (PLANTED(lost)) return;\n"),
                   ("bridge/server/planted.hpp", "#define RNBD_PLANTED(name) false\n")],
    gnutls_header: [("rdma/transport/tcp/planted.cpp", "#include <gnutls/gnutls.h>\n"),
                    ("bridge/nbd/planted.hpp", "#include <gnutls/x509.h>\n")],
    integers: [("bridge/planted.cpp", "#include <string>\nstd::uint64_t planted = 0;\n")],
    plugin_header: [("bridge/client/planted.cpp", "#include <nbdkit-plugin.h>\n")],
    one_definition: [
        ("rdma/transport/planted.cpp", "namespace rtrs {\nstruct Admission final {\n};\n}  // namespace rtrs\n"),
        ("bridge/planted.hpp", "namespace rnbd::nbd {\nclass Front : public Base {\n};\n}\n"),
    ],
    one_brain: [
        ("tests/sim/client_planted.cpp", "void ClientDriver::wait_for_deadline_on_io() {}\n"),
        ("tests/sim/server_planted.cpp", "void ServerHost::log_of_path(int level) {}\n"),
        ("tests/sim/server_planted.cpp", "bool ServerPathHost::answer_delayed() {}\n"),
        ("tests/sim/client_planted.cpp", "int ClientNode::claim(Device& device) {}\n"),
        ("tests/sim/client_planted.cpp", "void ClientNode::end_closing(Device& device) {}\n"),
    ],
    clocks: [
        ("rdma/core/planted.cpp", "auto t = std::chrono::steady_clock::now();\n"),
        ("rdma/wire/planted.cpp", "auto t = Clock::now ();\n"),
        ("rdma/core/planted.cpp", "clock_gettime(CLOCK_MONOTONIC, &t);\n"),
    ],
}
