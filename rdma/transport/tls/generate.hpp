// SPDX-License-Identifier: BSD-3-Clause
// New keys and certificates.
#pragma once

#include <ctime>
#include <string>
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

/// A line for a file of shared keys: NAME:HEX with 32 random bytes.
///
/// Errors: what GnuTLS says.
tl::expected<Content, std::string> make_psk_line(const std::string& name);

}  // namespace rtrs::tls
