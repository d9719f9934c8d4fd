// SPDX-License-Identifier: BSD-3-Clause
// Input: what a client shows as its certificate, in DER.
#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "rdma/transport/tls/inspect.hpp"
#include "rdma/transport/tls/psk_file.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace rtrs::tls;

namespace {

/// How often the object identifier of common names is in it, wherever that may be.
std::ptrdiff_t common_names_in(std::span<const std::uint8_t> der) {
  constexpr std::array<std::uint8_t, 5> kOid{0x06, 0x03, 0x55, 0x04, 0x03};
  std::ptrdiff_t count = 0;
  for (auto rest = der;; ++count) {
    const auto found = std::search(rest.begin(), rest.end(), kOid.begin(), kOid.end());
    if (found == rest.end()) return count;
    rest = std::span{found + kOid.size(), rest.end()};
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span der{data, size};
  const CertificateNames names = names_in(der);
  fuzz::require(names.common_name.size() < 256, "no name is longer than its limit");
  fuzz::require(std::ranges::all_of(names.serial, [](char c) { return std::isxdigit(c) != 0; }),
                "a serial number is written in digits");
  fuzz::require(names.common_name.empty() || common_names_in(der) > 0,
                "a certificate without a common name is nobody's");
  if (!fault_of_identity(names.common_name).empty()) return 0;
  fuzz::require(!names.common_name.empty() && names.common_name.size() <= 63, "a user has a name");
  fuzz::require(std::ranges::none_of(names.common_name,
                                     [](unsigned char c) {
                                       return c <= 0x20 || c >= 0x7F || c == '*' || c == '/' ||
                                              c == '@' || c == ':';
                                     }),
                "no user's name means more than one user, or a key, or an address");
  fuzz::require(identity_of(names.common_name) == names.common_name, "and it is whole");
  return 0;
}
