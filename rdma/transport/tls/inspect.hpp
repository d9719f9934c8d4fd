// SPDX-License-Identifier: BSD-3-Clause
// The facts of keys that may be shown.
#pragma once

#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

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
  std::string serial;       ///< hexadecimal digits
  std::time_t end = 0;      ///< seconds since 1970; it does not hold after that
};

/// The facts of the first certificate in `pem`.
///
/// Errors: a sentence of GnuTLS.
tl::expected<CertificateFacts, std::string> certificate_facts(std::string_view pem);

struct ListFacts {
  unsigned withdrawn = 0;           ///< certificates, in all lists of the file
  std::optional<std::time_t> next;  ///< when the first of them is due to be replaced
};

/// The facts of the revocation lists in `pem`.
///
/// Errors: a sentence of GnuTLS.
tl::expected<ListFacts, std::string> list_facts(std::string_view pem);

/// The end of the first of the certificates or revocation lists in `pem`; none: there are none.
///
/// Units: seconds since 1970.
std::optional<std::time_t> first_end(std::string_view pem);

/// The files with certificates and revocation lists in a directory, and first_end() of each. "" is
/// no directory.
std::vector<std::pair<std::string, std::time_t>> ends_in(const std::string& directory);

/// By what a certificate names its owner.
struct CertificateNames {
  std::string common_name;  ///< "": there is none, or several, or one that cannot be read
  std::string serial;       ///< hexadecimal digits
};

/// The time in which a certificate holds; the bytes may be no certificate in DER.
struct CertificateTimes {
  std::time_t begin = 0;
  std::time_t end = 0;
};
std::optional<CertificateTimes> times_in(std::span<const unsigned char> der);

/// The names in any bytes, which may be a certificate in DER.
CertificateNames names_in(std::span<const unsigned char> der);

/// Hexadecimal digits.
std::string hex_of(std::span<const unsigned char> bytes);

/// Says that a certificate is over, or will be within 30 days: "ends in 12 days"; "" = neither.
std::string end_soon(std::time_t end, std::time_t now);
/// The same of a revocation list, within 7 days: many authorities make a new one each month.
std::string list_ends_soon(std::time_t end, std::time_t now);

}  // namespace rtrs::tls
