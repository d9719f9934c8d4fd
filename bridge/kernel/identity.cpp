// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/kernel/identity.hpp"

#include <algorithm>
#include <charconv>

namespace rnbd::kernel {
namespace {

constexpr std::string_view kOurs = "rnbd:";
constexpr std::size_t kLongestName = 64;

bool may_be_in_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '-' || c == '_';
}

/// `text` is DISK/SIZE of a disk that may have grown since.
bool was_smaller(const Identity& identity, std::string_view text) {
  if (identity.size == 0 || !text.starts_with(identity.disk + "/")) return false;
  text.remove_prefix(identity.disk.size() + 1);
  std::uint64_t size = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), size);
  return error == std::errc{} && end == text.end() && size <= identity.size;
}

}  // namespace

std::string text_of(const Identity& identity) {
  const std::string size = identity.size == 0 ? "" : "/" + std::to_string(identity.size);
  return std::string{kOurs} + identity.disk + size + ":" + identity.name;
}

std::string complaint_about_map_name(std::string_view name) {
  if (!name.empty() && name.size() <= kLongestName && name.front() != '.' &&
      std::ranges::all_of(name, may_be_in_name)) {
    return "";
  }
  return "a mapping's name has 1 to 64 letters, digits, '.', '-' and '_', and no '.' in front";
}

Kinship kinship(const Identity& identity, std::string_view text) {
  const std::string end = ":" + identity.name;
  if (!text.starts_with(kOurs) || !text.ends_with(end)) return Kinship::stranger;
  if (text == text_of(identity)) return Kinship::same;
  if (text.size() < kOurs.size() + end.size()) return Kinship::stranger;
  text.remove_prefix(kOurs.size());
  text.remove_suffix(end.size());
  return was_smaller(identity, text) ? Kinship::same : Kinship::other;
}

}  // namespace rnbd::kernel
