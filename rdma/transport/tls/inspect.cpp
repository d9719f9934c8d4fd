// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/tls/inspect.hpp"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>

#include <array>
#include <memory>
#include <type_traits>

#include "rdma/audit_line.hpp"
#include "rdma/transport/tls/datum.hpp"

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

std::string common_name_of(gnutls_x509_crt_t certificate) {
  std::array<char, 256> name{};
  std::size_t size = name.size();
  const bool known = gnutls_x509_crt_get_dn_by_oid(certificate, GNUTLS_OID_X520_COMMON_NAME, 0, 0,
                                                   name.data(), &size) >= 0;
  return known ? ascii_of({name.data(), size}) : "";
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

CertificateNames names_in(std::span<const unsigned char> der) {
  CertificateNames names;
  const Certificate certificate = new_certificate();
  const gnutls_datum_t bytes{const_cast<unsigned char*>(der.data()),
                             static_cast<unsigned>(der.size())};
  if (!certificate || gnutls_x509_crt_import(certificate.get(), &bytes, GNUTLS_X509_FMT_DER) < 0) {
    return names;
  }
  std::array<char, 256> text{}, second{};
  std::size_t size = text.size(), second_size = second.size();
  const char* const oid = GNUTLS_OID_X520_COMMON_NAME;
  const bool only =
      gnutls_x509_crt_get_dn_by_oid(certificate.get(), oid, 1, 0, second.data(), &second_size) ==
      GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE;
  if (only &&
      gnutls_x509_crt_get_dn_by_oid(certificate.get(), oid, 0, 0, text.data(), &size) >= 0) {
    names.common_name.assign(text.data(), size);
  }
  std::array<unsigned char, 64> serial{};
  std::size_t serial_size = serial.size();
  if (gnutls_x509_crt_get_serial(certificate.get(), serial.data(), &serial_size) >= 0) {
    names.serial = hex_of(std::span{serial}.first(serial_size));
  }
  return names;
}

std::string fingerprint(const Secret& secret) {
  Hash hash{};
  const auto bytes = secret.bytes();
  const int error = gnutls_hash_fast(GNUTLS_DIG_SHA256, bytes.data(), bytes.size(), hash.data());
  return error < 0 ? "" : beginning_of(hash);
}

tl::expected<CertificateFacts, std::string> look_at(std::string_view pem) {
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
  return CertificateFacts{common_name_of(raw), beginning_of(hash),
                          gnutls_x509_crt_get_expiration_time(raw)};
}

std::string end_soon(std::time_t end, std::time_t now) {
  constexpr std::time_t kDay = 24 * 60 * 60;
  constexpr std::time_t kWarning = 30 * kDay;
  if (end <= now) return "is over";
  if (end - now > kWarning) return "";
  const auto days = (end - now) / kDay;
  return "ends in " + (days == 1 ? "1 day" : std::to_string(days) + " days");
}

}  // namespace rtrs::tls
