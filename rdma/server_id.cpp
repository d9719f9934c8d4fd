// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/server_id.hpp"

#include <charconv>

namespace rtrs {
namespace {

constexpr std::size_t kDigits = 16;

}  // namespace

std::string server_id_text(ServerId id) {
  std::string text(kDigits, '0');
  for (std::size_t i = kDigits; i-- > 0; id >>= 4) text[i] = "0123456789abcdef"[id & 15];
  return text;
}

std::string another_server(ServerId is, ServerId wanted) {
  const auto words = [](ServerId id) {
    return id == 0 ? "one that tells no identity" : "server " + server_id_text(id);
  };
  return "it leads to another server than the session's: " + words(is) + " instead of " +
         words(wanted);
}

tl::expected<ServerId, std::string> parse_server_id(std::string_view text) {
  ServerId id = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), id, 16);
  if (text.size() == kDigits && error == std::errc{} && end == text.end() && id != 0) return id;
  return tl::unexpected("'" + std::string{text} +
                        "' is no identity of a server; write the 16 hexadecimal digits that "
                        "`rnbd-ctl SOCKET status` shows as server_id");
}

}  // namespace rtrs
