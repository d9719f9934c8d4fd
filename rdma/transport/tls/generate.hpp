// SPDX-License-Identifier: BSD-3-Clause
// New keys and certificates.
#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "rdma/transport/tls/key_files.hpp"

namespace rtrs::tls {

/// A certificate and its private key, both as PEM.
struct Issued {
  std::string certificate;
  Content key;
};

struct CertificateRequest {
  enum class For { authority, server, client };

  For use = For::client;
  std::string common_name;
  std::vector<std::string> hosts;  ///< of a server: names and addresses
  std::time_t begin = 0;           ///< seconds since 1970; valid from then on
  std::time_t end = 0;
};

/// Makes a key (ECDSA on P-256) and a certificate for it. `authority` signs; null: it does itself.
///
/// Errors: what GnuTLS says.
tl::expected<Issued, std::string> issue(const CertificateRequest& request, const Issued* authority);

/// Adds certificates of an authority, by their serial numbers, to its revocation list. `lists` is
/// the file of before, perhaps with lists of other authorities, which stay; "" = there was none.
/// Returns the new file, as PEM.
///
/// Units:  `now` and `end` in seconds since 1970; the list has to be replaced by `end`.
/// Errors: what GnuTLS says.
tl::expected<std::string, std::string> withdraw(const Issued& authority, std::string_view lists,
                                                const std::vector<std::string>& serials,
                                                std::time_t now, std::time_t end);

/// A line for a file of shared keys: NAME:HEX with 32 random bytes.
///
/// Errors: what GnuTLS says.
tl::expected<Content, std::string> make_psk_line(const std::string& name);

}  // namespace rtrs::tls
