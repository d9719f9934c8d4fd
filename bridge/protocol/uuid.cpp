// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/protocol/uuid.hpp"

#include <charconv>

#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

using rtrs::wire::Uuid;

/// In front of these bytes is a hyphen.
bool begins_group(std::size_t byte) { return byte == 4 || byte == 6 || byte == 8 || byte == 10; }

}  // namespace

std::string uuid_text(const Uuid& uuid) {
  if (uuid == Uuid{}) return "";
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (begins_group(i)) text += '-';
    text += kDigits[uuid[i] >> 4];
    text += kDigits[uuid[i] & 15];
  }
  return text;
}

tl::expected<Uuid, std::string> parse_uuid(std::string_view text) {
  Uuid uuid{};
  std::string_view rest = text;
  const bool grouped = text.find('-') != std::string_view::npos;
  bool good = true;
  for (std::size_t i = 0; good && i < uuid.size(); ++i) {
    if (grouped && begins_group(i)) {
      good = rest.starts_with('-');
      rest.remove_prefix(good ? 1 : 0);
    }
    const std::string_view digits = rest.substr(0, 2);
    const auto [end, error] = std::from_chars(digits.begin(), digits.end(), uuid[i], 16);
    good = good && error == std::errc{} && digits.size() == 2 && end == digits.end();
    rest.remove_prefix(digits.size());
  }
  if (good && rest.empty() && uuid != Uuid{}) return uuid;
  return tl::unexpected(in_quotes(text) +
                        " is not the UUID of a disk; write it as nbdinfo and `rnbd-ctl SOCKET "
                        "status` show it, e.g. 01234567-89ab-cdef-0123-456789abcdef");
}

}  // namespace rnbd
