// SPDX-License-Identifier: BSD-3-Clause
// An export as the command line writes it: a name, its storage, and options.
#include <algorithm>
#include <string>
#include <string_view>

#include "bridge/daemon/server/rights_check.hpp"
#include "bridge/daemon/server/settings.hpp"
#include "bridge/protocol/closest.hpp"

namespace rnbd {
namespace {

/// Options behind the commas of an export. "" = understood.
std::string apply_export_option(ExportSpecification& target, std::string_view option) {
  constexpr std::string_view kAbout = "description=";
  if (option == "ro") {
    target.read_only = true;
  } else if (option == "direct") {
    target.direct = true;
  } else if (option.starts_with(kAbout)) {
    target.description = option.substr(kAbout.size());
  } else if (option.starts_with("rw=")) {
    return add_patterns(target.rights.rw, option.substr(3));
  } else if (option.starts_with("ro=")) {
    return add_patterns(target.rights.ro, option.substr(3));
  } else if (option.starts_with("iops-limit=")) {
    return set_iops_limit(target.limits, std::string{option.substr(11)});
  } else if (option.starts_with("bandwidth-limit=")) {
    return set_bandwidth_limit(target.limits, std::string{option.substr(16)});
  } else if (option == "rw") {
    return "an export is writable unless it says ro: leave ',rw' out";
  } else {
    const std::string word{option};
    const std::string guess = closest(
        word, {"ro", "direct", "rw=", "ro=", "iops-limit=", "bandwidth-limit=", "description="});
    return "unknown option '" + word + "' behind the comma; " +
           (guess.empty()
                ? "use ro, direct, rw=USER, ro=USER, iops-limit=N, bandwidth-limit=SIZE or "
                  "description=TEXT"
                : "did you mean '" + guess + "'?") +
           " (if the comma belongs to the path, put the export into a configuration file)";
  }
  return "";
}

/// "fault:", "nbd:" and the like: their specification may have commas of its own.
bool has_scheme(std::string_view storage) {
  const std::size_t colon = storage.find(':');
  return colon != std::string_view::npos && colon > 0 &&
         std::all_of(storage.begin(), storage.begin() + static_cast<std::ptrdiff_t>(colon),
                     [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); });
}

/// Takes the description, which may contain commas and therefore ends the text.
void take_description(ExportSpecification& target, std::string_view& rest) {
  constexpr std::string_view kMark = ",description=";
  const std::size_t at = rest.find(kMark);
  if (at == std::string_view::npos) return;
  target.description = rest.substr(at + kMark.size());
  rest = rest.substr(0, at);
}

}  // namespace

tl::expected<ExportSpecification, std::string> parse_export(std::string_view text) {
  const std::string shown = "'" + std::string{text} + "': ";
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == text.size()) {
    return tl::unexpected(shown +
                          "an export needs a name and its storage; write NAME=PATH, e.g. "
                          "disk0=/srv/disk0.img");
  }
  ExportSpecification specification;
  specification.name = text.substr(0, equals);
  if (const std::string fault = fault_of_name(specification.name); !fault.empty())
    return tl::unexpected(shown + "the name " + fault);
  std::string_view rest = text.substr(equals + 1);
  take_description(specification, rest);
  if (has_scheme(rest)) {
    // Only a text that is certainly an option is taken from the end.
    for (std::size_t comma = rest.rfind(','); comma != std::string_view::npos;
         comma = rest.rfind(',')) {
      if (!apply_export_option(specification, rest.substr(comma + 1)).empty()) break;
      rest = rest.substr(0, comma);
    }
  } else {
    std::size_t comma = rest.find(',');
    std::string_view options = comma == std::string_view::npos ? "" : rest.substr(comma);
    rest = rest.substr(0, comma);
    while (!options.empty()) {
      options.remove_prefix(1);
      comma = std::min(options.find(','), options.size());
      const std::string wrong = apply_export_option(specification, options.substr(0, comma));
      if (!wrong.empty()) return tl::unexpected(shown + wrong);
      options.remove_prefix(comma);
    }
  }
  if (rest.empty())
    return tl::unexpected(shown + "the storage is missing; write e.g. disk0=/srv/disk0.img");
  specification.storage = rest;
  return specification;
}

}  // namespace rnbd
