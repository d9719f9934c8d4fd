// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/words.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>
#include <utility>

#include "bridge/ctl/inventory.hpp"
#include "bridge/ctl/kernel_devices.hpp"
#include "bridge/ctl/program_words.hpp"
#include "bridge/protocol/closest.hpp"

namespace rnbd {
namespace {

// ---- Tables -------------------------------------------------------------------------------------

struct SideWord {
  std::string_view word;
  CtlSide side;
};
constexpr SideWord kSides[] = {
    {"client", CtlSide::client}, {"server", CtlSide::server}, {"both", CtlSide::both}};

struct ObjectWord {
  std::string_view word;
  CtlObject object;
};
constexpr ObjectWord kObjects[] = {
    {"devices", CtlObject::device},   {"device", CtlObject::device},
    {"dev", CtlObject::device},       {"devs", CtlObject::device},
    {"sessions", CtlObject::session}, {"session", CtlObject::session},
    {"sess", CtlObject::session},     {"paths", CtlObject::path},
    {"path", CtlObject::path}};

/// Bits of what stands in front of a verb, or may stand there.
constexpr std::uint32_t kClient = 1, kServer = 2, kDevice = 4, kSession = 8, kPath = 16,
                        kAnything = kClient | kServer | kDevice | kSession | kPath;

constexpr CtlVerbWord kVerbs[] = {
    {"list", CtlVerb::list, 0, 0, kAnything, "[client|server] list [devices|sessions|paths]",
     "What all running programs have, in one table."},
    {"ls", CtlVerb::list, 0, 0, 0, "", ""},
    {"show", CtlVerb::show, 1, 1, kAnything, "[client|server] show [device|session|path] NAME",
     "All about one of them, also who has it open."},
    {"check", CtlVerb::check, 0, 256, kClient | kServer, "[client|server] check [NAME...]",
     "Whether all is well, for monitoring: exit status 0, 1, 2 or 3 as Nagios has it."},
    {"map", CtlVerb::map, 1, 1, kClient | kDevice,
     "map DEVICE from SERVER [PATH...] | map URI [PATH...]",
     "Make a server's device a disk of this machine, /dev/nbdN."},
    {"unmap", CtlVerb::unmap, 1, 1, kClient | kDevice, "unmap NAME|nbdN", "Take such a disk away."},
    {"remap", CtlVerb::remap, 1, 1, kClient | kDevice | kSession,
     "remap [device] NAME|nbdN | [session] SESSION",
     "Take it away and map it anew; of a session all of its disks."},
    {"resize", CtlVerb::resize, 1, 2, kClient | kDevice, "resize NAME|nbdN [SIZE]",
     "Wait until the kernel has the size that the server has, or SIZE."},
    {"add", CtlVerb::add, 2, 2, kClient | kPath,
     "path add SESSION|DEVICE [SRC@]DST[:PORT][,preference=N]",
     "Gives the session another path to its server."},
    {"delete", CtlVerb::remove, 1, 2, kClient | kPath, "path delete [SESSION] PATH",
     "A path goes for good; its requests go over others."},
    {"remove", CtlVerb::remove, 1, 2, 0, "", ""},
    {"del", CtlVerb::remove, 1, 2, 0, "", ""},
    {"readd", CtlVerb::readd, 1, 2, kClient | kPath, "path readd [SESSION] PATH",
     "Delete a path and add it anew, with the same preference."},
    {"disconnect", CtlVerb::disconnect, 1, 2, kClient | kServer | kSession | kPath,
     "[client|server] disconnect [session] SESSION | [path] [SESSION] PATH",
     "Client: out of service until reconnect. Server: ended, and the client may come again."},
    {"reconnect", CtlVerb::reconnect, 1, 2, kClient | kSession | kPath,
     "reconnect [session] SESSION | [path] [SESSION] PATH",
     "Ends the connections and connects anew, at once."},
    {"recover", CtlVerb::recover, 1, 2, kClient | kDevice | kSession | kPath,
     "recover [device|session|path] NAME|all [add-missing]",
     "What is not connected connects at once; a bridge that has died starts."},
    {"close", CtlVerb::close, 1, 2, kServer | kDevice, "server close DEVICE [SESSION]",
     "Ends the sessions that have it open. Who only reads opens it again: `server reload` without "
     "the export, or the right to it, keeps him out."},
    {"udev", CtlVerb::udev, 1, 1, kClient | kDevice, "udev nbdN | NAME --wait SECONDS",
     "Name and UUID of a kernel's device, for rules of udev; or wait until its link is there."},
};

constexpr std::uint32_t bit_of(CtlVerb verb) { return 1U << static_cast<unsigned>(verb); }
constexpr std::uint32_t kOfLists = bit_of(CtlVerb::list) | bit_of(CtlVerb::show),
                        kOfMap = bit_of(CtlVerb::map),
                        kOfStart = kOfMap | bit_of(CtlVerb::remap) | bit_of(CtlVerb::recover),
                        kOfForce = bit_of(CtlVerb::unmap) | bit_of(CtlVerb::remap) |
                                   bit_of(CtlVerb::disconnect) | bit_of(CtlVerb::close),
                        kOfRecover = bit_of(CtlVerb::recover),
                        kOfJson = kOfLists | bit_of(CtlVerb::check),
                        kOfWait = kOfMap | bit_of(CtlVerb::udev) | bit_of(CtlVerb::add) |
                                  bit_of(CtlVerb::readd) | bit_of(CtlVerb::reconnect) |
                                  bit_of(CtlVerb::recover) | bit_of(CtlVerb::resize),
                        kOfSteps = kOfStart | kOfForce | kOfWait | bit_of(CtlVerb::remove),
                        kOfAll = ~0U;

/// A word that stands for itself, or with a value behind it.
struct CtlOptionWord {
  std::string_view word;
  std::string_view value;  ///< "": none
  std::uint32_t verbs;     ///< a bit for each that it belongs to
  std::string_view help;   ///< "": another word for one that has it
  void (*set)(CtlAction& action, const std::string& value);
};
template <auto kMember, auto kValue>
void set(CtlAction& action, const std::string&) {
  action.*kMember = kValue;
}
template <auto kMember>
void take(CtlAction& action, const std::string& value) {
  action.*kMember = value;
}
void watch_every(CtlAction& action, const std::string& seconds) {
  action.watch = true;
  action.interval = seconds;
}
void read_only(CtlAction& action, const std::string&) { action.access = "ro"; }
void read_write(CtlAction& action, const std::string&) { action.access = "rw"; }
void migrate(CtlAction& action, const std::string&) { action.access = "migration"; }

using A = CtlAction;
constexpr CtlOptionWord kOptions[] = {
    {"csv", "", kOfLists, "Values with commas between them.", set<&A::format, CtlFormat::csv>},
    {"json", "", kOfJson, "JSON; its keys are the names of the fields.",
     set<&A::format, CtlFormat::json>},
    {"xml", "", kOfLists, "XML; its elements are named as the fields.",
     set<&A::format, CtlFormat::xml>},
    {"notree", "", kOfLists, "Sessions without their paths below them.", set<&A::tree, false>},
    {"noheaders", "", kOfLists, "Without the line of headings.", set<&A::headers, false>},
    {"nototals", "", kOfLists, "Without the line of sums.", set<&A::totals, false>},
    {"all", "", kOfLists, "All fields.", set<&A::all_fields, true>},
    {"watch", "", kOfLists, "Again every second, until Ctrl-C.", set<&A::watch, true>},
    {"interval", "SECONDS", kOfLists, "Likewise, every so many seconds.", watch_every},
    {"from", "SERVER", kOfMap, "Whose device it is: HOST[:PORT].", take<&A::server>},
    {"rdma", "", kOfMap, "Over RDMA; TCP unless you say so.", set<&A::rdma, true>},
    {"paths=auto", "", kOfMap, "Also over the addresses that the server advertises.",
     set<&A::paths_of_server, true>},
    {"ro", "", kOfMap, "Read only.", read_only},
    {"rw", "", kOfMap, "For reading and writing.", read_write},
    {"read-only", "", kOfMap, "", read_only},
    {"readonly", "", kOfMap, "", read_only},
    {"read-write", "", kOfMap, "", read_write},
    {"migration", "", kOfMap, "For writing beside another writer, while a machine moves.", migrate},
    {"name", "NAME", kOfMap, "Of the mapping; without it the last part of DEVICE.",
     take<&A::map_name>},
    {"as", "nbdN", kOfMap, "This device of the kernel; without it the first that is free.",
     take<&A::kernel_device>},
    {"persist", "", kOfMap, "Also after the next boot.", set<&A::persist, true>},
    {"own-process", "", kOfMap, "With a process and a session of its own; others share theirs.",
     set<&A::own_process, true>},
    {"bridge", "PROGRAM", kOfStart, "What to start where there is no systemd.", take<&A::bridge>},
    {"wait", "SECONDS", kOfWait, "For how long at most; 0: not at all. Else 5, resize 30.",
     take<&A::wait>},
    {"force", "", kOfForce, "Although somebody uses it, who gets EIO.", set<&A::force, true>},
    {"add-missing", "", kOfRecover, "Sessions: also paths that they had at first, and lack now.",
     set<&A::add_missing, true>},
    // A word of IONOS's rnbd: all that is done is told in any case.
    {"verbose", "", kOfSteps, "", [](A&, const std::string&) {}},
    {"root", "DIRECTORY", kOfAll, "Look at run, etc and sys in there.", take<&A::root>},
};

/// The spelling that people are told. Dashes keep this one apart from a disk's name.
std::string as_told(const CtlOptionWord& option) {
  return (option.word == "persist" || option.word == "own-process" ? "--" : "") +
         std::string{option.word} + (option.value.empty() ? "" : " ") + std::string{option.value};
}

template <class Table>
auto find_word(const Table& table, std::string_view word) {
  const auto* const end = std::end(table);
  const auto* const found = std::ranges::find_if(
      std::begin(table), end, [word](const auto& each) { return each.word == word; });
  return found != end ? found : nullptr;
}

std::string_view without_dashes(std::string_view word) {
  return word.starts_with("--") ? word.substr(2) : word;
}

// ---- Reading ------------------------------------------------------------------------------------

using Parsed = tl::expected<CtlAction, std::string>;

bool is_unit(std::string_view word) {
  return word.size() == 1 && kCtlUnits.find(word[0]) != std::string_view::npos;
}

/// "+a,b", "-a" and "a,b"; whether there are such fields is for who shows them to say.
bool is_fields(std::string_view word) {
  const bool changes = word.starts_with('+') || word.starts_with('-');
  const std::string_view names = word.substr(changes ? 1 : 0);
  return !names.empty() && names.find_first_not_of("abcdefghijklmnopqrstuvwxyz_,") == names.npos;
}

/// A word for itself may be a mistyped one, which must not change what is mapped: a host's name
/// needs a scheme or a port.
bool is_path(std::string_view word) { return word.find_first_of(".:@") != std::string_view::npos; }

/// "from SERVER, ro, rw"
std::string words_of(CtlVerb verb) {
  std::string list;
  for (const CtlOptionWord& option : kOptions) {
    if (option.verbs == kOfAll || (option.verbs & bit_of(verb)) == 0 || option.help.empty()) {
      continue;
    }
    list += (list.empty() ? "" : ", ") + as_told(option);
  }
  return list;
}

/// The form of a verb with the side that it has, if that is not the given one; else "".
std::string complaint_about_side(const CtlVerbWord& given, CtlSide side) {
  const std::uint32_t wanted = side == CtlSide::client ? kClient : kServer;
  if (side == CtlSide::both) return "";
  for (const CtlVerbWord& verb : kVerbs) {  // another word for it has no help
    if (verb.verb != given.verb || verb.about == 0 || (verb.about & wanted) != 0) continue;
    const bool of_server = (verb.about & kServer) != 0;
    const std::string right = of_server ? "server" : "client";
    const std::string form{verb.form};
    return std::string{given.word} + " is a command of the " + right + " side; write rnbd-ctl " +
           (form.starts_with(right) ? "" : right + " ") + form;
  }
  return "";
}

/// The form of a verb's usual word, if it has several.
std::string form_of(CtlVerb verb) {
  for (const CtlVerbWord& each : kVerbs) {
    if (each.verb == verb && !each.form.empty()) return std::string{each.form};
  }
  return "";
}

/// Reads word after word.
class Reader {
 public:
  explicit Reader(const std::vector<std::string>& words) : words_{words} {}

  Parsed read() {
    while (at_ < words_.size()) {
      if (words_[at_] == "--") {
        action_.options.assign(words_.begin() + static_cast<std::ptrdiff_t>(at_) + 1, words_.end());
        break;
      }
      if (std::string wrong = take(words_[at_++]); !wrong.empty()) return tl::unexpected(wrong);
    }
    return finish();
  }

 private:
  using Step = bool (Reader::*)(std::string_view word);

  /// "" or what is wrong.
  std::string take(const std::string& word) {
    wrong_.clear();
    constexpr Step kSteps[] = {&Reader::take_option, &Reader::take_help,   &Reader::take_verb,
                               &Reader::take_side,   &Reader::take_object, &Reader::take_unit,
                               &Reader::take_name,   &Reader::take_fields, &Reader::take_path};
    for (const Step step : kSteps) {
      if ((this->*step)(word)) return wrong_;
    }
    return "'" + word + "' has no meaning here" + guess(word) +
           "; `rnbd-ctl help` tells of all words";
  }

  /// A name that looks like an option is written behind its verb, where a name is due.
  bool names_due() const { return verb_ != nullptr && action_.names.size() < verb_->least_names; }

  /// The first one was read, and more may come.
  bool in_names() const {
    return !action_.names.empty() && action_.names.size() < verb_->most_names;
  }

  bool take_option(std::string_view word) {
    const bool dashes = word.starts_with("--");
    if (names_due() && !dashes && !leads_device(word)) return false;
    const CtlOptionWord* option = find_word(kOptions, without_dashes(word));
    const bool has_value = dashes && option == nullptr;
    const std::size_t equals = has_value ? word.find('=') : std::string_view::npos;
    if (has_value) option = find_word(kOptions, without_dashes(word.substr(0, equals)));
    if (option == nullptr || !belongs(*option, dashes)) return false;
    options_.push_back(option);
    const std::string access = action_.access;
    if (option->value.empty() && equals != std::string_view::npos) {
      wrong_ = std::string{word} + ": it takes no value";
    } else if (option->value.empty()) {
      option->set(action_, "");
    } else if (equals != std::string_view::npos) {
      option->set(action_, std::string{word.substr(equals + 1)});
    } else if (at_ == words_.size()) {
      wrong_ = std::string{word} + ": write " + std::string{option->value} + " behind it";
    } else {
      option->set(action_, words_[at_++]);
    }
    if (!access.empty() && action_.access != access) {
      wrong_ = access + " and " + action_.access + " exclude each other; write one of them";
    }
    return true;
  }
  static bool is_flag_of_map(std::string_view word) {
    const CtlOptionWord* const option = find_word(kOptions, word);
    return option != nullptr && option->verbs != kOfAll && (option->verbs & kOfMap) != 0 &&
           option->value.empty();
  }
  /// `map persist disk0 from SERVER`; in `map persist from SERVER` it is the device.
  bool leads_device(std::string_view word) const {
    if (verb_->verb != CtlVerb::map || !is_flag_of_map(word)) return false;
    std::size_t next = at_;
    while (next < words_.size() && is_flag_of_map(words_[next])) ++next;
    return next < words_.size() && words_[next] != "from" && !words_[next].starts_with("-");
  }
  /// A word without dashes may be a name or a path just as well.
  bool belongs(const CtlOptionWord& option, bool dashes) const {
    return dashes || verb_ == nullptr || (option.verbs & bit_of(verb_->verb)) != 0;
  }
  bool take_help(std::string_view word) {
    const bool plain = without_dashes(word) == "help" || word == "-h";
    if (names_due() ? word != "--help" && !ends_with_help() : !plain) return false;
    helps_ = true;
    return true;
  }
  /// `unmap help`; with the object in between, `unmap device help`, it is a name.
  bool ends_with_help() const {
    return at_ == words_.size() && at_ >= 2 && words_[at_ - 1] == "help" &&
           words_[at_ - 2] == verb_->word;
  }
  bool take_verb(std::string_view word) {
    if (verb_ != nullptr) return false;
    verb_ = find_word(kVerbs, word);
    return verb_ != nullptr;
  }
  bool take_side(std::string_view word) {
    const SideWord* side = side_seen_ || in_names() ? nullptr : find_word(kSides, word);
    if (side == nullptr) return false;
    action_.side = side->side;
    return side_seen_ = true;
  }
  bool take_object(std::string_view word) {
    const ObjectWord* object = action_.object || in_names() ? nullptr : find_word(kObjects, word);
    if (object == nullptr) return false;
    action_.object = object->object;
    return true;
  }
  bool take_unit(std::string_view word) {
    if (names_due() || !is_unit(word)) return false;
    action_.unit = word[0];
    return true;
  }
  bool take_name(std::string_view word) {
    if (names_due() && verb_->verb == CtlVerb::map && word == "from" && !names_from_follows()) {
      wrong_ = complaint_about_order();
      return true;
    }
    if (verb_ == nullptr || action_.names.size() >= verb_->most_names || word.starts_with('-')) {
      return false;
    }
    action_.names.emplace_back(word);
    return true;
  }
  /// A device may be called so, too: `map from from SERVER`.
  bool names_from_follows() const { return at_ < words_.size() && words_[at_] == "from"; }
  /// `map from SERVER DEVICE`
  std::string complaint_about_order() const {
    const auto word = [this](std::size_t after, const char* instead) {
      return at_ + after < words_.size() ? words_[at_ + after] : std::string{instead};
    };
    return "map: the device comes before `from`; write rnbd-ctl map " + word(1, "DEVICE") +
           " from " + word(0, "SERVER");
  }
  /// `map disk0 store`
  std::string hint_at_server(const std::string& word) const {
    const std::string& device = action_.names.front();
    if (!action_.server.empty() || device.find("://") != std::string::npos) return "";
    return "; if it is the server write map " + device + " from " + word;
  }
  bool take_fields(std::string_view word) {
    if (verb_ == nullptr || (kOfLists & bit_of(verb_->verb)) == 0 || !is_fields(word)) return false;
    action_.fields.emplace_back(word);
    return true;
  }

  bool take_path(std::string_view word) {
    if (verb_ == nullptr || verb_->verb != CtlVerb::map || word.starts_with('-')) return false;
    if (is_path(word)) {
      action_.paths.emplace_back(word);
    } else {
      wrong_ = "'" + std::string{word} + "' is no word of map" + guess(std::string{word}) +
               hint_at_server(std::string{word}) + "; write " + words_of(CtlVerb::map) +
               ", or a path: an address, tcp:HOST, rdma:HOST or HOST:PORT";
    }
    return true;
  }

  std::string guess(const std::string& word) const {
    std::vector<std::string> known;
    const auto add = [&known](const auto& table) {
      for (const auto& each : table) known.emplace_back(each.word);
    };
    add(kVerbs), add(kSides), add(kObjects), add(kOptions);
    const std::string close = closest(std::string{without_dashes(word)}, known);
    return close.empty() ? "" : "; did you mean " + close + "?";
  }

  Parsed finish() {
    if (helps_) {
      const bool lists = verb_ != nullptr && (kOfLists & bit_of(verb_->verb)) != 0;
      if (lists) return CtlAction{.topic = verb_->verb, .object = action_.object};
      if (verb_ != nullptr) return CtlAction{.topic = verb_->verb};
      return CtlAction{.side = action_.side, .object = action_.object};
    }
    if (verb_ == nullptr && (side_seen_ || action_.object)) verb_ = find_word(kVerbs, "list");
    if (verb_ == nullptr) return tl::unexpected(std::string{"write what to do: list, show, ..."});
    if (names_due()) {
      return tl::unexpected("write rnbd-ctl " + form_of(verb_->verb));
    }
    action_.verb = verb_->verb;
    if (std::string wrong = complaint_about_side(*verb_, action_.side); !wrong.empty()) {
      return tl::unexpected(wrong);
    }
    for (const CtlOptionWord* option : options_) {
      if (!belongs(*option, false)) {
        return tl::unexpected(std::string{option->word} + " does not belong to " +
                              std::string{verb_->word} + "; leave it out");
      }
    }
    if (!action_.options.empty() && verb_->verb != CtlVerb::map) {
      return tl::unexpected(std::string{"only map takes options of rnbd-bridge behind --"});
    }
    return action_;
  }

  const std::vector<std::string>& words_;
  std::size_t at_ = 0;
  const CtlVerbWord* verb_ = nullptr;
  std::vector<const CtlOptionWord*> options_;
  bool side_seen_ = false;
  bool helps_ = false;
  std::string wrong_;
  CtlAction action_;
};

/// A number of seconds up to an hour.
tl::expected<double, std::string> seconds_in(const std::string& text, double least) {
  double seconds = 0;
  const char* const end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data(), end, seconds);
  if (error == std::errc{} && read == end && seconds >= least && seconds <= 3600) return seconds;
  return tl::unexpected("'" + text + "' is not a number of seconds from " +
                        (least == 0 ? "0" : "0.1") + " to 3600");
}

// ---- Help ---------------------------------------------------------------------------------------

constexpr std::size_t kWidthOfField = 17;

/// The bits of those whose help is asked.
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
  for (const CtlVerbWord& verb : kVerbs) {
    if ((verb.about & about) != 0) text += two_columns(verb.form, verb.help);
  }
  return text;
}

/// The verbs that have a parser of their own.
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

std::span<const CtlVerbWord> ctl_verb_words() { return kVerbs; }

bool begins_with_ctl_word(const std::vector<std::string>& words) {
  bool leads = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    const bool dashes = word.starts_with('-');
    const CtlOptionWord* option =
        dashes || leads ? find_word(kOptions, without_dashes(word)) : nullptr;
    if (option != nullptr && !option->value.empty()) ++i;
    if (dashes || option != nullptr) continue;
    if (find_word(kSides, word) == nullptr && find_word(kObjects, word) == nullptr) {
      return find_word(kVerbs, word) != nullptr || word == "help";
    }
    leads = true;
  }
  return leads;
}

std::string complaint_about_ctl_group(const std::vector<std::string>& words) {
  std::string group, wrong;
  bool of_object = false, of_server = false;
  for (const std::string& word : words) {
    const SideWord* const side = find_word(kSides, word);
    const bool is_object = find_word(kObjects, word) != nullptr;
    if (side == nullptr && !is_object) {
      wrong = word;
      break;
    }
    of_object = of_object || is_object;
    of_server = of_server || (side != nullptr && side->side == CtlSide::server);
    group += (group.empty() ? "" : " ") + word;
  }
  if (group.empty() || wrong.empty()) return "";
  const std::string guess = ctl_verb_like(wrong);
  if (of_object || !of_server || !guess.empty()) {
    return "'" + wrong + "' is no command of `rnbd-ctl " + group + "`" + guess +
           (guess.empty() ? "; `rnbd-ctl " : " `rnbd-ctl ") + group + " help` tells of all";
  }
  std::string behind;
  for (auto each = std::ranges::find(words, wrong); each != words.end(); ++each)
    behind += " " + *each;
  return "'" + wrong +
         "' is told to the server itself, and no control socket of one is found; write its socket "
         "instead, rnbd-ctl /PATH/control" +
         behind + ", or start rnbd-server with --control /run/rnbd-server/control";
}

tl::expected<CtlAction, std::string> parse_ctl_words(const std::vector<std::string>& words) {
  return Reader{words}.read();
}

tl::expected<double, std::string> seconds_to_wait(const CtlAction& action, double usual) {
  if (action.wait.empty()) return usual;
  return seconds_in(action.wait, 0).map_error([](const std::string& wrong) {
    return "wait: " + wrong;
  });
}

tl::expected<double, std::string> seconds_between_looks(const CtlAction& action) {
  return action.interval.empty() ? 1 : seconds_in(action.interval, 0.1);
}

std::string without_ip(std::string address) {
  constexpr std::string_view kKind = "ip:";
  if (address.starts_with(kKind)) address.erase(0, kKind.size());
  const std::size_t second = address.find("@ip:");
  if (second != std::string::npos) address.erase(second + 1, kKind.size());
  return address;
}

std::string uri_of_server(const std::string& server, const std::string& kind) {
  const auto uri = [](std::string_view transport, std::string_view address) {
    return std::string{transport == "rdma" ? "rnbd://" : "rnbd+tcp://"} + std::string{address};
  };
  for (const std::string_view transport : {"tcp", "rdma"}) {
    std::string_view rest = server;
    if (!rest.starts_with(transport) || !rest.substr(transport.size()).starts_with(':')) continue;
    rest.remove_prefix(transport.size() + 1);
    if (rest.starts_with("//")) return uri(transport, rest.substr(2));
    // A host may be called so, too: tcp:1234.
    if (rest.find_first_not_of("0123456789") != rest.npos) {
      return uri(transport, without_ip(std::string{rest}));
    }
  }
  return server.find("://") != std::string::npos ? server : uri(kind, without_ip(server));
}

const char* name_of(CtlObject object) {
  constexpr std::array kNames{"device", "session", "path"};
  return kNames.at(static_cast<std::size_t>(object));
}

std::string fstab_line(const std::string& name, const std::string& unit) {
  return link_of_mapping(name) + " /mnt/" + name + " ext4 _netdev,x-systemd.after=" + unit +
         ".service 0 0";
}

std::string ctl_verbs_in_short() {
  return verbs_about(kAnything) + verbs_without_socket() + help_on_program_words(CtlSide::both);
}

std::string help_on_ctl_words(const CtlAction& help) {
  const std::uint32_t meant = meant_by(help);
  std::uint32_t verbs = 0;
  std::string text = help.topic ? "" : title_of(help) + verbs_about(meant);
  for (const CtlVerbWord& verb : kVerbs) {
    if (help.topic ? help.topic == verb.verb : (verb.about & meant) != 0)
      verbs |= bit_of(verb.verb);
    if (help.topic == verb.verb && !verb.form.empty()) {
      text += "rnbd-ctl " + std::string{verb.form} + "\n" + std::string{verb.help} + "\n";
    }
  }
  if (!help.topic && meant == kAnything) text += verbs_without_socket();
  text += help.topic ? "\nWords behind it:\n" : "\nWords behind them:\n";
  for (const CtlOptionWord& option : kOptions) {
    if ((option.verbs & verbs) == 0 || option.help.empty()) continue;
    text += two_columns(as_told(option), option.help);
  }
  text += others_about(help, verbs);
  if (help.topic == CtlVerb::map) text += kBootHelp + fstab_line("NAME", "UNIT") + "\n";
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
  for (const CtlVerbWord& verb : kVerbs) {
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
