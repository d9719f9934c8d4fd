// SPDX-License-Identifier: BSD-3-Clause
// The identity of a connection's other end, and how it was proven.
#pragma once

#include <cstdint>
#include <string>

namespace rtrs {

struct Identity {
  enum class How : std::uint8_t { none, psk, certificate, proof };

  How how = How::none;
  std::string name;    ///< "" = nobody has proven anything
  std::string key;     ///< which of its keys: the name in the key file, or the serial number
  std::string cipher;  ///< of the connection, "tls13/aes128gcm"; "" = it is not encrypted

  /// Two connections belong to the same user. A key may have been renewed between them.
  bool same_user(const Identity& other) const { return name == other.name; }
};

inline const char* to_string(Identity::How how) {
  constexpr const char* kNames[] = {"none", "tls-psk", "tls-x509", "proof"};
  return kNames[static_cast<int>(how)];
}

/// For a column of a table: "tls13/aes128gcm host1", "proof host1", or "none".
inline std::string describe(const Identity& identity) {
  if (identity.how == Identity::How::proof) return "proof " + identity.name;
  if (identity.cipher.empty()) return "none";
  return identity.cipher + (identity.name.empty() ? "" : " " + identity.name);
}

}  // namespace rtrs
