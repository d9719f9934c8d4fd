// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/rbd_name.hpp"

#include "bridge/backend/specification.hpp"

namespace rnbd {
namespace {

bool parse_rbd_option(std::string_view item, RbdName& name) {
  std::string_view value = item;
  if (strip_prefix(value, "conf=")) {
    name.conf = value;
  } else if (strip_prefix(value, "id=")) {
    name.id = value;
  } else {
    return false;
  }
  return !value.empty();
}

bool parse_rbd_path(std::string_view path, RbdName& name) {
  const auto first = path.find('/');
  const auto last = path.rfind('/');
  if (first == std::string_view::npos) return false;
  name.pool = path.substr(0, first);
  if (last != first) name.space = path.substr(first + 1, last - first - 1);
  std::string_view image = path.substr(last + 1);
  const auto at = image.find('@');
  if (at != std::string_view::npos) name.snapshot = image.substr(at + 1);
  name.image = image.substr(0, at);
  const bool empty_part = (last != first && name.space.empty()) ||
                          (at != std::string_view::npos && name.snapshot.empty());
  return !name.pool.empty() && !name.image.empty() && !empty_part &&
         name.space.find('/') == std::string::npos;
}

}  // namespace

std::optional<RbdName> parse_rbd_name(std::string_view text) {
  RbdName name;
  std::string_view path = text.substr(0, text.find(','));
  text.remove_prefix(path.size());
  while (!text.empty()) {
    text.remove_prefix(1);
    const std::string_view item = text.substr(0, text.find(','));
    if (!parse_rbd_option(item, name)) return std::nullopt;
    text.remove_prefix(item.size());
  }
  return parse_rbd_path(path, name) ? std::optional{name} : std::nullopt;
}

}  // namespace rnbd
