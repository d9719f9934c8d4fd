// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/tls/generate.hpp"

#include <arpa/inet.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>

#include "rdma/transport/tls/datum.hpp"

namespace rtrs::tls {
namespace {

/// A key and a certificate of GnuTLS, for as long as they are needed.
struct Handles {
  Handles() = default;
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
  ~Handles() {
    if (certificate != nullptr) gnutls_x509_crt_deinit(certificate);
    if (key != nullptr) gnutls_x509_privkey_deinit(key);
  }
  int make() {
    const int error = gnutls_x509_crt_init(&certificate);
    return error < 0 ? error : gnutls_x509_privkey_init(&key);
  }

  gnutls_x509_crt_t certificate = nullptr;
  gnutls_x509_privkey_t key = nullptr;
};

/// The errors of GnuTLS are negative.
class Steps {
 public:
  template <class Function, class... Arguments>
  void run(Function function, Arguments... arguments) {
    if (error_ >= 0) error_ = function(arguments...);
  }
  bool failed() const { return error_ < 0; }
  tl::unexpected<std::string> failure() const {
    return tl::unexpected(std::string{gnutls_strerror(error_)});
  }

 private:
  int error_ = 0;
};

void add_host(Steps& steps, gnutls_x509_crt_t certificate, const std::string& host) {
  std::array<unsigned char, 16> address{};
  const int family = host.find(':') == std::string::npos ? AF_INET : AF_INET6;
  if (inet_pton(family, host.c_str(), address.data()) == 1) {
    steps.run(gnutls_x509_crt_set_subject_alt_name, certificate, GNUTLS_SAN_IPADDRESS,
              static_cast<const void*>(address.data()), family == AF_INET ? 4U : 16U,
              unsigned{GNUTLS_FSAN_APPEND});
  } else {
    steps.run(gnutls_x509_crt_set_subject_alt_name, certificate, GNUTLS_SAN_DNSNAME,
              static_cast<const void*>(host.data()), static_cast<unsigned>(host.size()),
              unsigned{GNUTLS_FSAN_APPEND});
  }
}

void describe(Steps& steps, gnutls_x509_crt_t certificate, const CertificateRequest& request) {
  using For = CertificateRequest::For;
  std::array<unsigned char, 16> serial{};
  steps.run(gnutls_rnd, GNUTLS_RND_NONCE, static_cast<void*>(serial.data()), serial.size());
  serial[0] &= 0x7F;  // a number that is not negative
  serial[0] |= 0x40;
  steps.run(gnutls_x509_crt_set_version, certificate, 3U);
  steps.run(gnutls_x509_crt_set_serial, certificate, static_cast<const void*>(serial.data()),
            serial.size());
  steps.run(gnutls_x509_crt_set_activation_time, certificate, request.begin);
  steps.run(gnutls_x509_crt_set_expiration_time, certificate, request.end);
  steps.run(gnutls_x509_crt_set_dn_by_oid, certificate, GNUTLS_OID_X520_COMMON_NAME, 0U,
            static_cast<const void*>(request.common_name.data()),
            static_cast<unsigned>(request.common_name.size()));
  const bool authority = request.use == For::authority;
  steps.run(gnutls_x509_crt_set_basic_constraints, certificate, authority ? 1U : 0U,
            authority ? 0 : -1);
  steps.run(gnutls_x509_crt_set_key_usage, certificate,
            authority ? unsigned{GNUTLS_KEY_KEY_CERT_SIGN | GNUTLS_KEY_CRL_SIGN}
                      : unsigned{GNUTLS_KEY_DIGITAL_SIGNATURE});
  if (!authority) {
    steps.run(gnutls_x509_crt_set_key_purpose_oid, certificate,
              static_cast<const void*>(request.use == For::server ? GNUTLS_KP_TLS_WWW_SERVER
                                                                  : GNUTLS_KP_TLS_WWW_CLIENT),
              0U);
  }
  for (const std::string& host : request.hosts) add_host(steps, certificate, host);
}

template <class Handle, class Export>
std::vector<char> pem_of(Steps& steps, Handle handle, Export function) {
  gnutls_datum_t text{};
  steps.run(function, handle, GNUTLS_X509_FMT_PEM, &text);
  if (steps.failed()) return {};
  std::vector<char> pem{text.data, text.data + text.size};
  forget(std::as_writable_bytes(std::span{text.data, text.size}));
  gnutls_free(text.data);
  return pem;
}

/// The certificate of several that is taken is the one whose key is there: the file of an authority
/// may have other authorities, too. Returns an error of GnuTLS.
int import_authority(Handles& signer, const Issued& authority) {
  const auto text = datum_of(authority.certificate);
  const auto key = datum_of(authority.key.text());
  int error = gnutls_x509_privkey_init(&signer.key);
  if (error >= 0) error = gnutls_x509_privkey_import(signer.key, &key, GNUTLS_X509_FMT_PEM);
  std::array<unsigned char, 64> wanted{}, id{};
  std::size_t wanted_size = wanted.size();
  if (error >= 0)
    error = gnutls_x509_privkey_get_key_id(signer.key, 0, wanted.data(), &wanted_size);
  gnutls_x509_crt_t* all = nullptr;
  unsigned count = 0;
  if (error >= 0) error = gnutls_x509_crt_list_import2(&all, &count, &text, GNUTLS_X509_FMT_PEM, 0);
  if (error < 0) return error;
  for (unsigned n = 0; n < count; ++n) {
    std::size_t size = id.size();
    const bool is_it = signer.certificate == nullptr &&
                       gnutls_x509_crt_get_key_id(all[n], 0, id.data(), &size) >= 0 &&
                       size == wanted_size && id == wanted;
    if (is_it) {
      signer.certificate = all[n];
    } else {
      gnutls_x509_crt_deinit(all[n]);
    }
  }
  gnutls_free(all);
  return signer.certificate != nullptr ? 0 : GNUTLS_E_CERTIFICATE_KEY_MISMATCH;
}

struct KeyId {
  std::array<unsigned char, 64> bytes{};
  std::size_t size = 0;
};

/// The one that the certificate names. Without that, the SHA-1 of its key.
KeyId key_id_of(Steps& steps, gnutls_x509_crt_t certificate) {
  KeyId id;
  unsigned critical = 0;
  id.size = id.bytes.size();
  if (gnutls_x509_crt_get_subject_key_id(certificate, id.bytes.data(), &id.size, &critical) >= 0)
    return id;
  id.size = id.bytes.size();
  steps.run([&] {
    return gnutls_x509_crt_get_key_id(certificate, GNUTLS_KEYID_USE_SHA1, id.bytes.data(),
                                      &id.size);
  });
  return id;
}

}  // namespace

tl::expected<Issued, std::string> issue(const CertificateRequest& request,
                                        const Issued* authority) {
  Steps steps;
  Handles own;
  Handles signer;
  steps.run([&] { return own.make(); });
  steps.run([&] {
    return gnutls_x509_privkey_generate(own.key, GNUTLS_PK_ECDSA,
                                        GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0);
  });
  steps.run([&] { return gnutls_x509_crt_set_key(own.certificate, own.key); });
  describe(steps, own.certificate, request);
  const KeyId id = key_id_of(steps, own.certificate);
  steps.run([&] {
    return gnutls_x509_crt_set_subject_key_id(own.certificate, id.bytes.data(), id.size);
  });
  if (authority != nullptr) steps.run([&] { return import_authority(signer, *authority); });
  const Handles& by = authority != nullptr ? signer : own;
  // Clients that are strict ask for it (Python's ssl since 3.13).
  const KeyId authority_id = key_id_of(steps, by.certificate);
  steps.run([&] {
    return gnutls_x509_crt_set_authority_key_id(own.certificate, authority_id.bytes.data(),
                                                authority_id.size);
  });
  steps.run([&] {
    return gnutls_x509_crt_sign2(own.certificate, by.certificate, by.key, GNUTLS_DIG_SHA256, 0);
  });
  const auto certificate = pem_of(steps, own.certificate, gnutls_x509_crt_export2);
  Content key{pem_of(steps, own.key, gnutls_x509_privkey_export2)};
  if (steps.failed()) return steps.failure();
  return Issued{{certificate.begin(), certificate.end()}, std::move(key)};
}

namespace {

/// A revocation list of GnuTLS.
using List =
    std::unique_ptr<std::remove_pointer_t<gnutls_x509_crl_t>, decltype(&gnutls_x509_crl_deinit)>;

std::vector<List> lists_in(std::string_view pem) {
  std::vector<List> all;
  gnutls_x509_crl_t* raw = nullptr;
  unsigned count = 0;
  const auto text = datum_of(pem);
  if (gnutls_x509_crl_list_import2(&raw, &count, &text, GNUTLS_X509_FMT_PEM, 0) < 0) return all;
  for (unsigned n = 0; n < count; ++n) all.emplace_back(raw[n], gnutls_x509_crl_deinit);
  gnutls_free(raw);
  return all;
}

bool is_of(gnutls_x509_crl_t list, gnutls_x509_crt_t authority) {
  unsigned status = 0;
  return gnutls_x509_crl_verify(list, &authority, 1, 0, &status) >= 0 &&
         (status & (GNUTLS_CERT_SIGNER_NOT_FOUND | GNUTLS_CERT_SIGNATURE_FAILURE)) == 0;
}

using Serials = std::map<std::vector<unsigned char>, std::time_t>;  ///< and since when

void add_serials(Serials& serials, gnutls_x509_crl_t list) {
  for (int n = 0; n < gnutls_x509_crl_get_crt_count(list); ++n) {
    std::vector<unsigned char> serial(64);
    std::size_t size = serial.size();
    time_t since = 0;
    if (gnutls_x509_crl_get_crt_serial(list, static_cast<unsigned>(n), serial.data(), &size,
                                       &since) < 0) {
      continue;
    }
    serial.resize(size);
    serials.emplace(std::move(serial), since);
  }
}

std::vector<unsigned char> bytes_of_hex(std::string_view hex) {
  std::vector<unsigned char> bytes(hex.size() / 2);
  std::size_t size = bytes.size();
  const auto text = datum_of(hex);
  if (gnutls_hex_decode(&text, bytes.data(), &size) < 0) size = 0;
  bytes.resize(size);
  return bytes;
}

}  // namespace

tl::expected<std::string, std::string> withdraw(const Issued& authority, std::string_view lists,
                                                const std::vector<std::string>& serials,
                                                std::time_t now, std::time_t end) {
  Steps steps;
  Handles signer;
  steps.run([&] { return import_authority(signer, authority); });
  if (steps.failed()) return steps.failure();
  Serials all;
  std::string text;
  const auto keep = [&](gnutls_x509_crl_t list) {
    const auto pem = pem_of(steps, list, gnutls_x509_crl_export2);
    text.append(pem.begin(), pem.end());
  };
  const auto before = lists_in(lists);
  if (!lists.empty() && before.empty()) {
    return tl::unexpected(std::string{"there is no revocation list in it"});
  }
  for (const List& list : before) {
    if (is_of(list.get(), signer.certificate)) {
      add_serials(all, list.get());
    } else {
      keep(list.get());
    }
  }
  for (const std::string& serial : serials) all.emplace(bytes_of_hex(serial), now);
  gnutls_x509_crl_t raw = nullptr;
  steps.run([&] { return gnutls_x509_crl_init(&raw); });
  const List list{raw, gnutls_x509_crl_deinit};
  // The time is a number that grows.
  std::array<unsigned char, 8> number{};
  for (std::size_t n = 0; n < number.size(); ++n)
    number[n] = static_cast<unsigned char>(static_cast<std::uint64_t>(now) >> (8 * (7 - n)));
  const KeyId id = key_id_of(steps, signer.certificate);
  steps.run([&] { return gnutls_x509_crl_set_version(raw, 2); });
  steps.run([&] { return gnutls_x509_crl_set_this_update(raw, now); });
  steps.run([&] { return gnutls_x509_crl_set_next_update(raw, end); });
  steps.run([&] { return gnutls_x509_crl_set_number(raw, number.data(), number.size()); });
  steps.run([&] { return gnutls_x509_crl_set_authority_key_id(raw, id.bytes.data(), id.size); });
  for (const auto& [serial, since] : all) {
    steps.run([&, &serial = serial, &since = since] {
      return gnutls_x509_crl_set_crt_serial(raw, serial.data(), serial.size(), since);
    });
  }
  steps.run([&] {
    return gnutls_x509_crl_sign2(raw, signer.certificate, signer.key, GNUTLS_DIG_SHA256, 0);
  });
  keep(raw);
  if (steps.failed()) return steps.failure();
  return text;
}

tl::expected<Content, std::string> make_psk_line(const std::string& name) {
  std::array<std::byte, 32> bytes{};
  Steps steps;
  steps.run(gnutls_rnd, GNUTLS_RND_KEY, static_cast<void*>(bytes.data()), bytes.size());
  if (steps.failed()) return steps.failure();
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::vector<char> line;
  line.reserve(name.size() + 2 + 2 * bytes.size());
  line.insert(line.end(), name.begin(), name.end());
  line.push_back(':');
  for (const std::byte byte : bytes) {
    line.push_back(kDigits[static_cast<unsigned>(byte) >> 4U]);
    line.push_back(kDigits[static_cast<unsigned>(byte) & 0xFU]);
  }
  line.push_back('\n');
  forget(bytes);
  return Content{std::move(line)};
}

}  // namespace rtrs::tls
