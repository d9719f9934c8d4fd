// SPDX-License-Identifier: BSD-3-Clause
// The facts of keys that may be shown.
#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "rdma/transport/tls/secret.hpp"

namespace rtrs::tls {

/// The first 8 bytes of the SHA-256 of a secret as 16 hexadecimal digits: tells whether two files
/// have the same one. Of secrets that a person chose it tells a guesser which guess is right.
///
/// Errors: "" when GnuTLS has none.
std::string fingerprint(const Secret& secret);

struct CertificateFacts {
  std::string name;         ///< the common name, as printable ASCII; "" = none
  std::string fingerprint;  ///< likewise of the certificate's DER
  std::time_t end = 0;      ///< seconds since 1970; it does not hold after that
};

/// Of the first certificate in `pem`.
///
/// Errors: a sentence of GnuTLS.
tl::expected<CertificateFacts, std::string> look_at(std::string_view pem);

/// Says that a certificate is over, or will be within 30 days: "ends in 12 days"; "" = neither.
std::string end_soon(std::time_t end, std::time_t now);

}  // namespace rtrs::tls
