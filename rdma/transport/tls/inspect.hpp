// SPDX-License-Identifier: BSD-3-Clause
// The facts of keys that may be shown.
#pragma once

#include <ctime>
#include <span>
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

/// By what a certificate names its owner.
struct CertificateNames {
  std::string common_name;  ///< "": there is none, or several, or one that cannot be read
  std::string serial;       ///< hexadecimal digits
};

/// Of any bytes, perhaps a certificate in DER.
CertificateNames names_in(std::span<const unsigned char> der);

/// Hexadecimal digits.
std::string hex_of(std::span<const unsigned char> bytes);

/// Says that a certificate is over, or will be within 30 days: "ends in 12 days"; "" = neither.
std::string end_soon(std::time_t end, std::time_t now);

}  // namespace rtrs::tls
