// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/tls/inspect.hpp"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>

#include <algorithm>
#include <array>
#include <memory>
#include <type_traits>

#include "rdma/audit_line.hpp"
#include "rdma/transport/tls/datum.hpp"
#include "rdma/transport/tls/key_files.hpp"

namespace rtrs::tls {
namespace {

constexpr std::size_t kShown = 8;  ///< bytes of a hash
using Hash = std::array<unsigned char, 32>;
using Certificate =
    std::unique_ptr<std::remove_pointer_t<gnutls_x509_crt_t>, decltype(&gnutls_x509_crt_deinit)>;

std::string beginning_of(const Hash& hash) { return hex_of(std::span{hash}.first(kShown)); }

Certificate new_certificate() {
  gnutls_x509_crt_t raw = nullptr;
  if (gnutls_x509_crt_init(&raw) < 0) raw = nullptr;
  return {raw, gnutls_x509_crt_deinit};
}

/// The bytes of the string in DER. "": it is none whose characters are bytes.
///
/// Source: X.690, 8.1 and 8.23.
std::string bytes_of_string(std::string_view der) {
  constexpr std::string_view kTags{"\x0c\x13\x14\x16"};  // UTF-8, printable, Teletex, IA5
  constexpr std::size_t kShort = 0x80, kOneByte = 0x81;  // lengths
  if (der.size() < 3 || kTags.find(der[0]) == std::string_view::npos) return "";
  std::size_t length = static_cast<unsigned char>(der[1]), begin = 2;
  if (length == kOneByte)
    length = static_cast<unsigned char>(der[begin++]);
  else if (length >= kShort)
    return "";
  return der.size() - begin == length ? std::string{der.substr(begin)} : "";
}

/// As it is in the certificate: GnuTLS would spell a name that is no text in another way, `#` and
/// digits, which might be somebody else's.
std::string common_name_of(gnutls_x509_crt_t certificate) {
  std::array<char, 256> der{};
  std::size_t size = der.size();
  const bool known = gnutls_x509_crt_get_dn_by_oid(certificate, GNUTLS_OID_X520_COMMON_NAME, 0,
                                                   /*raw_flag=*/1, der.data(), &size) >= 0;
  return known ? bytes_of_string({der.data(), size}) : "";
}

/// "": it has none that can be read.
std::string serial_of(gnutls_x509_crt_t certificate) {
  std::array<unsigned char, 64> serial{};
  std::size_t size = serial.size();
  const bool known = gnutls_x509_crt_get_serial(certificate, serial.data(), &size) >= 0;
  return known ? hex_of(std::span{serial}.first(size)) : "";
}

std::string ends_within(int days, std::time_t end, std::time_t now) {
  constexpr std::time_t kDay = 24 * 60 * 60;
  if (end <= now) return "is over";
  if (end - now > days * kDay) return "";
  const auto left = (end - now) / kDay;
  return "ends in " + (left == 1 ? "1 day" : std::to_string(left) + " days");
}

}  // namespace

std::string hex_of(std::span<const unsigned char> bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::optional<CertificateTimes> times_in(std::span<const unsigned char> der) {
  const Certificate certificate = new_certificate();
  const gnutls_datum_t bytes{const_cast<unsigned char*>(der.data()),
                             static_cast<unsigned>(der.size())};
  if (!certificate || gnutls_x509_crt_import(certificate.get(), &bytes, GNUTLS_X509_FMT_DER) < 0) {
    return std::nullopt;
  }
  return CertificateTimes{gnutls_x509_crt_get_activation_time(certificate.get()),
                          gnutls_x509_crt_get_expiration_time(certificate.get())};
}

CertificateNames names_in(std::span<const unsigned char> der) {
  CertificateNames names;
  const Certificate certificate = new_certificate();
  const gnutls_datum_t bytes{const_cast<unsigned char*>(der.data()),
                             static_cast<unsigned>(der.size())};
  if (!certificate || gnutls_x509_crt_import(certificate.get(), &bytes, GNUTLS_X509_FMT_DER) < 0) {
    return names;
  }
  std::array<char, 256> second{};
  std::size_t second_size = second.size();
  const char* const oid = GNUTLS_OID_X520_COMMON_NAME;
  const bool only =
      gnutls_x509_crt_get_dn_by_oid(certificate.get(), oid, 1, 0, second.data(), &second_size) ==
      GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE;
  if (only) names.common_name = common_name_of(certificate.get());
  names.serial = serial_of(certificate.get());
  return names;
}

std::string fingerprint(const Secret& secret) {
  Hash hash{};
  const auto bytes = secret.bytes();
  const int error = gnutls_hash_fast(GNUTLS_DIG_SHA256, bytes.data(), bytes.size(), hash.data());
  return error < 0 ? "" : beginning_of(hash);
}

tl::expected<CertificateFacts, std::string> certificate_facts(std::string_view pem) {
  const Certificate certificate = new_certificate();
  gnutls_x509_crt_t const raw = certificate.get();
  const auto text = datum_of(pem);
  int error = raw != nullptr ? gnutls_x509_crt_import(raw, &text, GNUTLS_X509_FMT_PEM)
                             : GNUTLS_E_MEMORY_ERROR;
  if (error < 0) return tl::unexpected(std::string{gnutls_strerror(error)});
  Hash hash{};
  std::size_t size = hash.size();
  error = gnutls_x509_crt_get_fingerprint(raw, GNUTLS_DIG_SHA256, hash.data(), &size);
  if (error < 0) return tl::unexpected(std::string{gnutls_strerror(error)});
  return CertificateFacts{ascii_of(common_name_of(raw)), beginning_of(hash), serial_of(raw),
                          gnutls_x509_crt_get_expiration_time(raw)};
}

tl::expected<ListFacts, std::string> list_facts(std::string_view pem) {
  gnutls_x509_crl_t* lists = nullptr;
  unsigned count = 0;
  const auto text = datum_of(pem);
  const int error = gnutls_x509_crl_list_import2(&lists, &count, &text, GNUTLS_X509_FMT_PEM, 0);
  if (error < 0) return tl::unexpected(std::string{gnutls_strerror(error)});
  ListFacts facts;
  for (unsigned n = 0; n < count; ++n) {
    facts.withdrawn += static_cast<unsigned>(std::max(gnutls_x509_crl_get_crt_count(lists[n]), 0));
    const std::time_t next = gnutls_x509_crl_get_next_update(lists[n]);
    if (next >= 0) facts.next = std::min(facts.next.value_or(next), next);
    gnutls_x509_crl_deinit(lists[n]);
  }
  gnutls_free(lists);
  return facts;
}

std::optional<std::time_t> first_end(std::string_view pem) {
  std::optional<std::time_t> first;
  gnutls_x509_crt_t* certificates = nullptr;
  unsigned count = 0;
  const auto text = datum_of(pem);
  if (gnutls_x509_crt_list_import2(&certificates, &count, &text, GNUTLS_X509_FMT_PEM, 0) >= 0) {
    for (unsigned n = 0; n < count; ++n) {
      const std::time_t end = gnutls_x509_crt_get_expiration_time(certificates[n]);
      if (end >= 0) first = std::min(first.value_or(end), end);
      gnutls_x509_crt_deinit(certificates[n]);
    }
    gnutls_free(certificates);
    return first;
  }
  const auto lists = list_facts(pem);
  return lists ? lists->next : std::nullopt;
}

std::vector<std::pair<std::string, std::time_t>> ends_in(const std::string& directory) {
  std::vector<std::pair<std::string, std::time_t>> all;
  if (directory.empty()) return all;
  for (const char* const name :
       {kCaCertificate, kRevocations, kServerCertificate, kClientCertificate}) {
    const std::string path = directory + '/' + name;
    if (!is_there(path)) continue;
    const auto content = read_key_file(path, Kind::open);
    if (!content) continue;
    if (const auto end = first_end(content->text())) all.emplace_back(path, *end);
  }
  return all;
}

std::string end_soon(std::time_t end, std::time_t now) { return ends_within(30, end, now); }

std::string list_ends_soon(std::time_t end, std::time_t now) { return ends_within(7, end, now); }

}  // namespace rtrs::tls
