// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/words.hpp"

#include <algorithm>
#include <array>

#include "bridge/ctl/word_tables.hpp"
#include "bridge/protocol/closest.hpp"

namespace rnbd {
namespace {

using namespace ctl_words;

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
  for (const OptionWord& option : kOptions) {
    if (option.verbs == kOfAll || (option.verbs & bit_of(verb)) == 0 || option.help.empty()) {
      continue;
    }
    list += (list.empty() ? "" : ", ") + as_told(option);
  }
  return list;
}

/// The form of a verb with the side that it has, if that is not the given one; else "".
std::string complaint_about_side(const VerbWord& given, CtlSide side) {
  const std::uint32_t wanted = side == CtlSide::client ? kClient : kServer;
  if (side == CtlSide::both) return "";
  for (const VerbWord& verb : kVerbs) {  // another word for it has no help
    if (verb.verb != given.verb || verb.about == 0 || (verb.about & wanted) != 0) continue;
    const bool of_server = (verb.about & kServer) != 0;
    const std::string right = of_server ? "server" : "client";
    const std::string form{verb.form};
    return std::string{given.word} + " is a command of the " + right + " side; write rnbd-ctl " +
           (form.starts_with(right) ? "" : right + " ") + form;
  }
  return "";
}

/// That of a verb's usual word, if it has several.
std::string form_of(CtlVerb verb) {
  for (const VerbWord& each : kVerbs) {
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
    const OptionWord* option = find_word(kOptions, without_dashes(word));
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
    const OptionWord* const option = find_word(kOptions, word);
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
  /// Without dashes a word may be a name or a path just as well.
  bool belongs(const OptionWord& option, bool dashes) const {
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

}  // namespace

bool begins_with_ctl_word(const std::vector<std::string>& words) {
  bool leads = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    const bool dashes = word.starts_with('-');
    const OptionWord* option =
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

}  // namespace rnbd
