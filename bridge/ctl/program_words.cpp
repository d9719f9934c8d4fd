// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/program_words.hpp"

#include <algorithm>
#include <iterator>

namespace rnbd {
namespace {

constexpr std::string_view kAddressOfPath = "[tcp:|rdma:][SRC@]DST[:PORT][,preference=N]";

constexpr ProgramWord kProgramWords[] = {
    {"status", "", CtlSide::both,
     "What it has: sessions, paths, devices, listeners, and their troubles."},
    {"top", "[--once] [--interval SECONDS]", CtlSide::both,
     "What its devices and paths do now, again every second, until Ctrl-C."},
    {"counters", "", CtlSide::both, "What devices and paths have done so far, for programs."},
    {"metrics", "", CtlSide::both,
     "The metrics in the text format of Prometheus; nbdkit's plugin has none."},
    {"help", "", CtlSide::both, "The commands of this program, as it tells them itself."},
    {"reload", "[--check] [--force]", CtlSide::server,
     "Reads configuration and keys again; --check: only tells; --force: also what is open goes."},
    {"access", "LISTENER ACCESS", CtlSide::server,
     "optimized, non-optimized or inaccessible: whether clients send I/O over this listener."},
    {"drain", "[LISTENER]", CtlSide::server,
     "Clients are to send nothing over this listener, or any; waits until they do."},
    {"evict", "SESSION|DEVICE [for TIME] [--force]", CtlSide::server,
     "Ends this session, or those that have the device open; their clients open nothing until "
     "readmit, or for a time. --force: also those that write; they get EIO."},
    {"readmit", "CLIENT|SESSION|all", CtlSide::server,
     "Lets clients in again that were evicted, by their name or address, or that of\n"
     "their session; status tells who is out."},
    {"disconnect", "CLIENT", CtlSide::server,
     "Closes the path that comes from this address; the client may connect it again."},
    {"upgrade", "[state]", CtlSide::client,
     "Replaces rnbd-bridge by the program that is installed now, while its clients go on; with "
     "state: says how far that is."},
    {"add-path", kAddressOfPath, CtlSide::client,
     "Gives the session another path to the server, at once."},
    {"remove-path", kAddressOfPath, CtlSide::client,
     "A path goes for good; its requests go over others."},
    {"disconnect", kAddressOfPath, CtlSide::client, "Takes a path out of service until reconnect."},
    {"reconnect", kAddressOfPath, CtlSide::client, "Puts it into service again."},
    {"policy", "round-robin|min-inflight|min-latency", CtlSide::client,
     "Which of equally good paths takes a request."},
};

bool is_of(const ProgramWord& word, CtlSide side) {
  return word.side == CtlSide::both || side == CtlSide::both || word.side == side;
}

std::string form_of_word(const ProgramWord& word) {
  return std::string{word.word} + (word.argument.empty() ? "" : " ") + std::string{word.argument};
}

std::string lines_of_words(CtlSide side, CtlSide words_of) {
  std::string text;
  for (const ProgramWord& word : program_words()) {
    if (word.side == words_of && is_of(word, side))
      text += two_columns(form_of_word(word), word.help);
  }
  return text;
}

constexpr const char* kBehindHelp =
    "\nPROGRAM is a control socket or its name, as in `rnbd-ctl disk0 status`; it may be left out "
    "if "
    "there\nis one only. Behind rnbd-ctl there may be --json, --watch and --interval SECONDS.\n";

/// The form and help of each command of this name. "": there is none.
std::string forms_of(const std::string& command, CtlSide side) {
  std::string text;
  for (const ProgramWord& word : program_words()) {
    if (word.word != command || !is_of(word, side)) continue;
    const bool of_server = side == CtlSide::server || word.side == CtlSide::server;
    text += std::string{of_server ? "rnbd-ctl server " : "rnbd-ctl PROGRAM "} + form_of_word(word) +
            "\n" + std::string{word.help} + "\n";
  }
  return text;
}

}  // namespace

std::string two_columns(std::string_view left, std::string_view right) {
  constexpr std::size_t kWidth = 12;
  std::string line = "  " + std::string{left};
  line += left.size() > kWidth ? "\n      " : std::string(kWidth + 2 - left.size(), ' ');
  return line + std::string{right} + "\n";
}

std::vector<ProgramWord> program_words() {
  std::vector<ProgramWord> all{std::begin(kProgramWords), std::end(kProgramWords)};
  for (const CtlAnnex* annex : ctl_annexes())
    all.insert(all.end(), annex->words.begin(), annex->words.end());
  return all;
}

std::string help_on_program_words(CtlSide side) {
  std::string text =
      "\nCommands that a running program answers: `rnbd-ctl server status` asks the server, "
      "`rnbd-ctl\ndisk0 status` the one called disk0:\n" +
      lines_of_words(side, CtlSide::both);
  if (side != CtlSide::client) text += "Of a server:\n" + lines_of_words(side, CtlSide::server);
  if (side != CtlSide::server)
    text += "Of rnbd-bridge and nbdkit's plugin:\n" + lines_of_words(side, CtlSide::client);
  return text;
}

std::optional<std::string> help_on_program_word(const std::vector<std::string>& words) {
  std::vector<std::string> plain;
  bool asked = false;
  for (const std::string& word : words) {
    asked = asked || word == "--help" || word == "-h";
    if (!word.starts_with('-')) plain.push_back(word);
  }
  if (!asked) return std::nullopt;
  // COMMAND alone, or SOCKET COMMAND.
  plain.resize(std::min<std::size_t>(plain.size(), 2));
  for (const std::string& command : plain) {
    std::string text =
        forms_of(command, plain.front() == "server" ? CtlSide::server : CtlSide::both);
    if (!text.empty()) return text + kBehindHelp;
  }
  return std::nullopt;
}

}  // namespace rnbd
