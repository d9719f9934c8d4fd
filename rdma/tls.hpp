// SPDX-License-Identifier: BSD-3-Clause
// Where the keys of TLS are, and when it is used.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rtrs {

enum class TlsMode : std::uint8_t {
  off,
  on,       ///< of a listener: clients choose
  require,  ///< nothing is sent or taken in clear
};

inline const char* to_string(TlsMode mode) {
  constexpr const char* kNames[] = {"off", "on", "require"};
  return kNames[static_cast<int>(mode)];
}

/// Whether clients that come without TLS have to prove that they have a key.
enum class AuthMode : std::uint8_t { none, psk };

inline const char* to_string(AuthMode mode) { return mode == AuthMode::psk ? "psk" : "none"; }

/// Names of files, never what is in them. They are read again when they have changed.
struct TlsKeys {
  std::string psk;           ///< file of shared keys, NAME:HEX a line; "" = none
  std::string certificates;  ///< directory with the file names of nbdkit; "" = none
  /// Of a client: the name of its key; "" = the only one of the file.
  std::string username;
  bool verify_peer = true;  ///< the other end needs a certificate that the CA has signed
  /// Of the NBD front: clients with a certificate may have TLS 1.2, because Debian's nbd-client has
  /// nothing newer. RTRS leaves it off.
  bool tls12 = false;
  bool none() const { return psk.empty() && certificates.empty(); }
};

/// The beginning of credential:NAME, where TlsKeys has the name of a file or directory. Such a key
/// systemd hands over to a service, in place of a file that its user could read. It is a directory
/// if LoadCredential=NAME:DIRECTORY hands it over.
///
/// Source: systemd.exec(5), CREDENTIALS.
inline constexpr std::string_view kCredential = "credential:";

}  // namespace rtrs
