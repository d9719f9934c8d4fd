// SPDX-License-Identifier: BSD-3-Clause
// The help on rnbd-ctl's own commands.
#include <algorithm>
#include <utility>

#include "bridge/ctl/device_link.hpp"
#include "bridge/ctl/inventory.hpp"
#include "bridge/ctl/program_words.hpp"
#include "bridge/ctl/word_tables.hpp"
#include "bridge/ctl/words.hpp"
#include "bridge/protocol/closest.hpp"

namespace rnbd {
namespace {

using namespace ctl_words;

constexpr std::size_t kWidthOfField = 17;

/// Those of which the help is asked.
std::uint32_t meant_by(const CtlAction& help) {
  if (help.object == CtlObject::device) return kDevice;
  if (help.object == CtlObject::session) return kSession;
  if (help.object == CtlObject::path) return kPath;
  return help.side == CtlSide::client   ? kClient
         : help.side == CtlSide::server ? kServer
                                        : kAnything;
}

/// A line for each verb.
std::string verbs_about(std::uint32_t about) {
  std::string text;
  for (const VerbWord& verb : kVerbs) {
    if ((verb.about & about) != 0) text += two_columns(verb.form, verb.help);
  }
  return text;
}

/// Those that have a parser of their own.
std::string verbs_without_socket() {
  return two_columns("discover URI", "The exports of a server, and who has them.") +
         two_columns("keygen NAME FILE", "Make a shared key.") +
         two_columns("keys PATH", "Show keys or certificates, and take a key away.") +
         two_columns("certgen DIRECTORY", "Make an authority and certificates.");
}

std::string title_of(const CtlAction& help) {
  if (help.object) return std::string{"Commands about "} + name_of(*help.object) + "s:\n";
  if (help.side == CtlSide::client)
    return "Commands about clients, rnbd-bridge and nbdkit's plugin:\n";
  if (help.side == CtlSide::server) return "Commands about servers:\n";
  return "Commands for all running programs:\n";
}

/// A line for each field with what it means; a star behind those that are usual, if not all are
/// shown.
std::string fields_explained(CtlObject object, bool all) {
  std::string text = "\nFields of a " + std::string{name_of(object)} +
                     (all ? ":\n" : ", those with a star unless you choose others:\n");
  for (const CtlField& field : fields_of(object)) {
    std::string line = "  " + std::string{field.name} + (field.usual && !all ? "*" : "");
    line.resize(kWidthOfField, ' ');
    text += line + std::string{field.meaning} + "\n";
  }
  return text;
}

/// The names of fields, several in a line; a star behind those that are usual.
std::string fields_in_lines(CtlObject object) {
  constexpr std::size_t kWidth = 98;
  std::string text, line = "  " + std::string{name_of(object)} + ":";
  for (const CtlField& field : fields_of(object)) {
    const std::string name = " " + std::string{field.name} + (field.usual ? "*" : "");
    if (line.size() + name.size() > kWidth) {
      text += line + "\n";
      line = "     ";
    }
    line += name;
  }
  return text + line + "\n";
}

constexpr const char* kOpenersHelp =
    "\nWho has it open? `rnbd-ctl show NAME` tells the mounts and processes of this machine that "
    "have"
    "\na disk of the kernel, as openers; so does `list +openers`, which takes time for each disk."
    "\n`rnbd-ctl server show NAME` tells the sessions that have an export, with address and "
    "access.\n";

/// Words that the tables of words do not have.
std::string others_about(const CtlAction& help, std::uint32_t verbs) {
  std::string text;
  if ((verbs & kOfLists) != 0) {
    text += two_columns("a,b +a -a",
                        "These fields, also with blanks between them; besides the usual ones; not "
                        "these.");
    text += two_columns("B K M G T", "Sizes in this unit.");
  }
  if ((verbs & kOfMap) != 0) {
    text += two_columns("--", "map: what follows are options of rnbd-bridge.");
  }
  if ((verbs & kOfLists) == 0) return text;
  if (help.topic) text += kOpenersHelp;
  if (!help.topic) {
    text +=
        "\nFields, which `list help` explains, those with a star unless you choose others; a table "
        "leaves\nout what is empty:\n";
  }
  for (const CtlObject object : {CtlObject::device, CtlObject::session, CtlObject::path}) {
    if (help.object && *help.object != object) continue;
    text += help.topic ? fields_explained(object, help.topic == CtlVerb::show)
                       : fields_in_lines(object);
  }
  return text;
}

constexpr const char* kBootHelp =
    "\nA disk that is mounted at boot: write --persist, and into /etc/fstab\n  ";

constexpr const char* kStatusHelp =
    "\nExit status: 0, done; 1, not done, and standard error says why; 2, a wrong command line.\n";
constexpr const char* kCheckHelp =
    "\nExit status: 0, all is well; 1, a warning; 2, critical; 3, not known, or a wrong command "
    "line.\n";

}  // namespace

std::string ctl_words::two_columns(std::string_view left, std::string_view right) {
  constexpr std::size_t kWidth = 12;
  std::string line = "  " + std::string{left};
  line += left.size() > kWidth ? "\n      " : std::string(kWidth + 2 - left.size(), ' ');
  return line + std::string{right} + "\n";
}

std::string fstab_line(const std::string& name) {
  return link_of_mapping(name) + " /mnt/" + name + " ext4 _netdev,x-systemd.after=rnbd-map@" +
         name + ".service 0 0";
}

std::string ctl_verbs_in_short() {
  return verbs_about(kAnything) + verbs_without_socket() + help_on_program_words(CtlSide::both);
}

std::string help_on_ctl_words(const CtlAction& help) {
  const std::uint32_t meant = meant_by(help);
  std::uint32_t verbs = 0;
  std::string text = help.topic ? "" : title_of(help) + verbs_about(meant);
  for (const VerbWord& verb : kVerbs) {
    if (help.topic ? help.topic == verb.verb : (verb.about & meant) != 0)
      verbs |= bit_of(verb.verb);
    if (help.topic == verb.verb && !verb.form.empty()) {
      text += "rnbd-ctl " + std::string{verb.form} + "\n" + std::string{verb.help} + "\n";
    }
  }
  if (!help.topic && meant == kAnything) text += verbs_without_socket();
  text += help.topic ? "\nWords behind it:\n" : "\nWords behind them:\n";
  for (const OptionWord& option : kOptions) {
    if ((option.verbs & verbs) == 0 || option.help.empty()) continue;
    text += two_columns(as_told(option), option.help);
  }
  text += others_about(help, verbs);
  if (help.topic == CtlVerb::map) text += kBootHelp + fstab_line("NAME") + "\n";
  if (!help.topic && !help.object) text += help_on_program_words(help.side);
  return text + (help.topic == CtlVerb::check ? kCheckHelp : kStatusHelp);
}

std::string ctl_verb_like(const std::string& word) {
  constexpr std::pair<std::string_view, std::string_view> kOthers[] = {
      {"connect", "map DEVICE from SERVER"},
      {"attach", "map DEVICE from SERVER"},
      {"detach", "unmap"},
      {"list-subsys", "list sessions"},
      {"connect-all", "map"}};
  for (const auto& [theirs, ours] : kOthers) {
    if (word == theirs) return "; did you mean " + std::string{ours} + "?";
  }
  std::vector<std::string> known{"discover", "keygen", "keys", "certgen"};
  for (const VerbWord& verb : kVerbs) {
    if (!verb.form.empty()) known.emplace_back(verb.word);
  }
  for (const ProgramWord& each : program_words()) known.emplace_back(each.word);
  if (std::ranges::find(known, word) != known.end()) return "";
  std::string close = closest(word, known);
  for (const std::string& verb : known) {
    if (close.empty() && word.size() >= 3 && verb.starts_with(word)) close = verb;
  }
  return close.empty() ? "" : "; did you mean " + close + "?";
}

}  // namespace rnbd
