// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/words.hpp"

#include <algorithm>
#include <array>

#include "bridge/client/closest.hpp"

namespace rnbd {
namespace {

using Parsed = tl::expected<CtlAction, std::string>;

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

struct VerbWord {
  std::string_view word;
  CtlVerb verb;
  std::size_t least_names, most_names;
  std::string_view form;
  std::string_view help;
};
constexpr VerbWord kVerbs[] = {
    {"list", CtlVerb::list, 0, 0, "[client|server] list [devices|sessions|paths]",
     "What all running programs have, in one table."},
    {"ls", CtlVerb::list, 0, 0, "", ""},
    {"show", CtlVerb::show, 1, 1, "[client|server] show [device|session|path] NAME",
     "All about one of them."},
    {"map", CtlVerb::map, 1, 1, "map DEVICE from SERVER [PATH...] | map URI [PATH...]",
     "Make a server's device a disk of this machine, /dev/nbdN."},
    {"unmap", CtlVerb::unmap, 1, 1, "unmap NAME|nbdN", "Take such a disk away."},
    {"remap", CtlVerb::remap, 1, 1, "remap [device] NAME|nbdN | [session] SESSION",
     "Take it away and map it anew; of a session all of its disks."},
    {"resize", CtlVerb::resize, 1, 2, "resize NAME|nbdN [SIZE]",
     "Wait until the kernel has the size that the server has, or SIZE."},
    {"add", CtlVerb::add, 2, 2, "path add SESSION [SRC@]DST[:PORT][,preference=N]",
     "One more path to the server."},
    {"delete", CtlVerb::remove, 1, 2, "path delete [SESSION] PATH",
     "A path goes for good; its requests go over others."},
    {"remove", CtlVerb::remove, 1, 2, "", ""},
    {"readd", CtlVerb::readd, 1, 2, "path readd [SESSION] PATH", "Both, one after the other."},
    {"disconnect", CtlVerb::disconnect, 1, 2,
     "[client|server] disconnect [session] SESSION | [path] [SESSION] PATH",
     "Client: out of service until reconnect. Server: ended, and the client may come again."},
    {"reconnect", CtlVerb::reconnect, 1, 2, "reconnect [session] SESSION | [path] [SESSION] PATH",
     "Ends the connections and connects anew, at once."},
    {"recover", CtlVerb::recover, 1, 2, "recover [device|session|path] NAME|all [add-missing]",
     "What is not connected connects at once; a bridge that has died starts."},
    {"close", CtlVerb::close, 1, 2, "server close DEVICE [SESSION]",
     "Ends the sessions that have it open."},
    {"udev", CtlVerb::udev, 1, 1, "udev nbdN",
     "Name and UUID of a kernel's device, for rules of udev."},
};

constexpr std::uint32_t bit_of(CtlVerb verb) { return 1U << static_cast<unsigned>(verb); }
constexpr std::uint32_t kOfLists = bit_of(CtlVerb::list) | bit_of(CtlVerb::show),
                        kOfMap = bit_of(CtlVerb::map),
                        kOfStart = kOfMap | bit_of(CtlVerb::remap) | bit_of(CtlVerb::recover),
                        kOfForce = bit_of(CtlVerb::unmap) | bit_of(CtlVerb::remap) |
                                   bit_of(CtlVerb::disconnect) | bit_of(CtlVerb::close),
                        kOfRecover = bit_of(CtlVerb::recover), kOfAll = ~0U;

/// A word that stands for itself, or with a value behind it.
struct OptionWord {
  std::string_view word;
  std::string_view value;  ///< "": none
  std::uint32_t verbs;     ///< a bit for each that it belongs to
  std::string_view help;
  void (*set)(CtlAction& action, const std::string& value);
};
using Text = const std::string&;
constexpr OptionWord kOptions[] = {
    {"csv", "", kOfLists, "Values with commas between them.",
     [](CtlAction& action, Text) { action.format = CtlFormat::csv; }},
    {"json", "", kOfLists, "JSON; its keys are the names of the fields.",
     [](CtlAction& action, Text) { action.format = CtlFormat::json; }},
    {"xml", "", kOfLists, "XML; its elements are named as the fields.",
     [](CtlAction& action, Text) { action.format = CtlFormat::xml; }},
    {"notree", "", kOfLists, "Sessions without their paths below them.",
     [](CtlAction& action, Text) { action.tree = false; }},
    {"noheaders", "", kOfLists, "Without the line of headings.",
     [](CtlAction& action, Text) { action.headers = false; }},
    {"nototals", "", kOfLists, "Without the line of sums.",
     [](CtlAction& action, Text) { action.totals = false; }},
    {"all", "", kOfLists, "All fields.", [](CtlAction& action, Text) { action.all_fields = true; }},
    {"watch", "", kOfLists, "Again every second, until Ctrl-C.",
     [](CtlAction& action, Text) { action.watch = true; }},
    {"interval", "SECONDS", kOfLists, "Likewise, every so many seconds.",
     [](CtlAction& action, Text value) {
       action.watch = true;
       action.interval = value;
     }},
    {"from", "SERVER", kOfMap, "Whose device it is: HOST[:PORT].",
     [](CtlAction& action, Text value) { action.server = value; }},
    {"rdma", "", kOfMap, "Over RDMA; TCP unless you say so.",
     [](CtlAction& action, Text) { action.rdma = true; }},
    {"paths=auto", "", kOfMap, "Also over the addresses that the server advertises.",
     [](CtlAction& action, Text) { action.paths_of_server = true; }},
    {"ro", "", kOfMap, "Read only.", [](CtlAction& action, Text) { action.access = "ro"; }},
    {"rw", "", kOfMap, "For reading and writing.",
     [](CtlAction& action, Text) { action.access = "rw"; }},
    {"migration", "", kOfMap, "For writing beside another writer, while a machine moves.",
     [](CtlAction& action, Text) { action.access = "migration"; }},
    {"name", "NAME", kOfMap, "Of the mapping; without it the last part of DEVICE.",
     [](CtlAction& action, Text value) { action.map_name = value; }},
    {"as", "nbdN", kOfMap, "This device of the kernel; without it the first that is free.",
     [](CtlAction& action, Text value) { action.kernel_device = value; }},
    {"persist", "", kOfMap, "Also after the next boot.",
     [](CtlAction& action, Text) { action.persist = true; }},
    {"bridge", "PROGRAM", kOfStart, "What to start where there is no systemd.",
     [](CtlAction& action, Text value) { action.bridge = value; }},
    {"force", "", kOfForce, "Although somebody uses it, who gets EIO.",
     [](CtlAction& action, Text) { action.force = true; }},
    {"add-missing", "", kOfRecover, "Sessions: also paths that they had at first, and lack now.",
     [](CtlAction& action, Text) { action.add_missing = true; }},
    {"root", "DIRECTORY", kOfAll, "Look at run, etc and sys in there.",
     [](CtlAction& action, Text value) { action.root = value; }},
};

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

bool is_unit(std::string_view word) {
  return word.size() == 1 && kCtlUnits.find(word[0]) != std::string_view::npos;
}

/// "+a,b", "-a" and "a,b"; whether there are such fields is for who shows them to say.
bool is_fields(std::string_view word) {
  const bool changes = word.starts_with('+') || word.starts_with('-');
  const std::string_view names = word.substr(changes ? 1 : 0);
  return !names.empty() && names.find_first_not_of("abcdefghijklmnopqrstuvwxyz_,") == names.npos;
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
    if (names_due() && !dashes) return false;
    const OptionWord* option = find_word(kOptions, without_dashes(word));
    const bool has_value = dashes && option == nullptr;
    const std::size_t equals = has_value ? word.find('=') : std::string_view::npos;
    if (has_value) option = find_word(kOptions, without_dashes(word.substr(0, equals)));
    if (option == nullptr || !belongs(*option, dashes)) return false;
    options_.push_back(option);
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
    return true;
  }
  /// Without dashes a word may be a name or a path just as well.
  bool belongs(const OptionWord& option, bool dashes) const {
    return dashes || verb_ == nullptr || (option.verbs & bit_of(verb_->verb)) != 0;
  }
  bool take_help(std::string_view word) {
    if (names_due() ? word != "--help" : without_dashes(word) != "help" && word != "-h") {
      return false;
    }
    helps_ = true;
    return true;
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
    if (verb_ == nullptr || action_.names.size() >= verb_->most_names || word.starts_with('-')) {
      return false;
    }
    action_.names.emplace_back(word);
    return true;
  }
  bool take_fields(std::string_view word) {
    if (verb_ == nullptr || (kOfLists & bit_of(verb_->verb)) == 0 || !is_fields(word)) return false;
    action_.fields.emplace_back(word);
    return true;
  }

  bool take_path(std::string_view word) {
    if (verb_ == nullptr || verb_->verb != CtlVerb::map || word.starts_with('-')) return false;
    action_.paths.emplace_back(word);
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
      CtlAction help;
      if (verb_ != nullptr) help.topic = verb_->verb;
      return help;
    }
    if (verb_ == nullptr) return tl::unexpected(std::string{"write what to do: list, show, ..."});
    if (names_due()) {
      return tl::unexpected("write rnbd-ctl " + std::string{verb_->form});
    }
    action_.verb = verb_->verb;
    for (const OptionWord* option : options_) {
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
  const VerbWord* verb_ = nullptr;
  std::vector<const OptionWord*> options_;
  bool side_seen_ = false;
  bool helps_ = false;
  std::string wrong_;
  CtlAction action_;
};

std::string two_columns(std::string_view left, std::string_view right) {
  constexpr std::size_t kWidth = 12;
  std::string line = "  " + std::string{left};
  line += left.size() > kWidth ? "\n      " : std::string(kWidth + 2 - left.size(), ' ');
  return line + std::string{right} + "\n";
}

}  // namespace

bool begins_with_ctl_word(const std::vector<std::string>& words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    const OptionWord* option =
        word.starts_with("--") ? find_word(kOptions, word.substr(2)) : nullptr;
    if (option != nullptr && !option->value.empty()) ++i;
    const bool leads = find_word(kSides, word) != nullptr || find_word(kObjects, word) != nullptr;
    if (word.starts_with('-') || leads) continue;
    return find_word(kVerbs, word) != nullptr || word == "help";
  }
  return false;
}

tl::expected<CtlAction, std::string> parse_ctl_words(const std::vector<std::string>& words) {
  return Reader{words}.read();
}

std::string ctl_verbs_in_short() {
  std::string text;
  for (const VerbWord& verb : kVerbs) {
    if (!verb.form.empty()) text += two_columns(verb.form, verb.help);
  }
  return text;
}

std::string help_on_ctl_words(std::optional<CtlVerb> topic) {
  std::string text = topic ? "" : "Commands for all running programs:\n" + ctl_verbs_in_short();
  for (const VerbWord& verb : kVerbs) {
    if (topic == verb.verb && !verb.form.empty()) {
      text += "rnbd-ctl " + std::string{verb.form} + "\n" + std::string{verb.help} + "\n";
    }
  }
  const std::uint32_t about = topic ? bit_of(*topic) : kOfAll;
  text += "\nWords behind ";
  text += topic ? "it:\n" : "them:\n";
  for (const OptionWord& option : kOptions) {
    if ((option.verbs & about) == 0) continue;
    const std::string gap = option.value.empty() ? "" : " ";
    text += two_columns(std::string{option.word} + gap + std::string{option.value}, option.help);
  }
  if ((about & kOfLists) != 0) {
    text += two_columns("a,b +a -a", "These fields; besides the usual ones; not these.");
    text += two_columns("B K M G T", "Sizes in this unit.");
  }
  if ((about & kOfMap) != 0) {
    text += two_columns("--", "map: what follows are options of rnbd-bridge.");
  }
  return text;
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
  std::vector<std::string> known;
  for (const VerbWord& verb : kVerbs) {
    if (!verb.form.empty()) known.emplace_back(verb.word);
  }
  const std::string close = closest(word, known);
  return close.empty() ? "" : "; did you mean " + close + "?";
}

std::string without_ip(std::string address) {
  constexpr std::string_view kKind = "ip:";
  if (address.starts_with(kKind)) address.erase(0, kKind.size());
  const std::size_t second = address.find("@ip:");
  if (second != std::string::npos) address.erase(second + 1, kKind.size());
  return address;
}

const char* name_of(CtlObject object) {
  constexpr std::array kNames{"device", "session", "path"};
  return kNames.at(static_cast<std::size_t>(object));
}

}  // namespace rnbd
