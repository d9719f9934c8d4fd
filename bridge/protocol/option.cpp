// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/protocol/option.hpp"

namespace rnbd {

std::string set_bool(bool& target, std::string_view value) {
  static constexpr OptionWord<bool> kWords[] = {{"true", true}, {"false", false}, {"yes", true},
                                                {"no", false},  {"on", true},     {"off", false},
                                                {"1", true},    {"0", false}};
  return set_word(target, value, kWords);
}

std::string set_text(std::string& target, const std::string& value) {
  if (value.empty()) return "must not be empty";
  target = value;
  return "";
}

}  // namespace rnbd
