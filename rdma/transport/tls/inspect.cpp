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

std::string beginning_of(const Hash& hash) {
  constexpr const char* kHex = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < kShown; ++i) text += {kHex[hash[i] >> 4], kHex[hash[i] & 15]};
  return text;
}

std::string common_name_of(gnutls_x509_crt_t certificate) {
  std::array<char, 256> name{};
  std::size_t size = name.size();
  const bool known = gnutls_x509_crt_get_dn_by_oid(certificate, GNUTLS_OID_X520_COMMON_NAME, 0, 0,
                                                   name.data(), &size) >= 0;
  return known ? ascii_of({name.data(), size}) : "";
}

}  // namespace

std::string fingerprint(const Secret& secret) {
  Hash hash{};
  const auto bytes = secret.bytes();
  const int error = gnutls_hash_fast(GNUTLS_DIG_SHA256, bytes.data(), bytes.size(), hash.data());
  return error < 0 ? "" : beginning_of(hash);
}

tl::expected<CertificateFacts, std::string> look_at(std::string_view pem) {
  gnutls_x509_crt_t raw = nullptr;
  int error = gnutls_x509_crt_init(&raw);
  const Certificate certificate{raw, gnutls_x509_crt_deinit};
  const auto text = datum_of(pem);
  if (error >= 0) error = gnutls_x509_crt_import(raw, &text, GNUTLS_X509_FMT_PEM);
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
