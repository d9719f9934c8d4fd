// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/key_file.hpp"

#include <cstdlib>
#include <filesystem>

#include "rdma/tls.hpp"

namespace rnbd {

tl::expected<std::string, std::string> parse_key_file(std::string_view value) {
  using Error = tl::unexpected<std::string>;
  if (value.empty()) return Error{"the name is missing"};
  if (!value.starts_with(rtrs::kCredential)) {
    return std::filesystem::absolute(value).lexically_normal().string();
  }
  const std::string name{value.substr(rtrs::kCredential.size())};
  const std::string whole = "'" + std::string{value} + "'";
  if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos) {
    return Error{whole + " names no credential of systemd; write e.g. credential:keys.psk"};
  }
  if (std::getenv("CREDENTIALS_DIRECTORY") == nullptr) {
    return Error{whole +
                 " is a credential of systemd, which has handed over none; write LoadCredential=" +
                 name + ":/etc/rnbd/" + name + " into the unit, or name a file"};
  }
  return std::string{value};
}

}  // namespace rnbd
