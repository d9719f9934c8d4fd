// SPDX-License-Identifier: BSD-3-Clause
#include "tests/unit/transport/tls_raw_peer.hpp"

#include <doctest/doctest.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>

#include <cstring>

namespace rtrs::test {
namespace {

constexpr const char* kPriority =
    "NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+AES-128-GCM:-KX-ALL:+ECDHE-PSK";
constexpr std::size_t kTag = 16;

gnutls_datum_t datum(std::span<const std::byte> bytes) {
  return {reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data())),
          static_cast<unsigned>(bytes.size())};
}

}  // namespace

RawTlsPeer::RawTlsPeer(int socket, const std::string& user, std::span<const std::byte> key) {
  REQUIRE(gnutls_init(&session_, GNUTLS_CLIENT | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL) == 0);
  REQUIRE(gnutls_psk_allocate_client_credentials(&credentials_) == 0);
  const gnutls_datum_t secret = datum(key);
  REQUIRE(gnutls_psk_set_client_credentials(credentials_, user.c_str(), &secret,
                                            GNUTLS_PSK_KEY_RAW) == 0);
  REQUIRE(gnutls_credentials_set(session_, GNUTLS_CRD_PSK, credentials_) == 0);
  REQUIRE(gnutls_priority_set_direct(session_, kPriority, nullptr) == 0);
  std::string protocol = "rtrs/1";
  const gnutls_datum_t name{reinterpret_cast<unsigned char*>(protocol.data()),
                            static_cast<unsigned>(protocol.size())};
  REQUIRE(gnutls_alpn_set_protocols(session_, &name, 1, 0) == 0);
  gnutls_handshake_set_timeout(session_, 0);
  gnutls_transport_set_int(session_, socket);
}

RawTlsPeer::~RawTlsPeer() {
  gnutls_deinit(session_);
  gnutls_psk_free_client_credentials(credentials_);
}

bool RawTlsPeer::shake_hands() { return gnutls_handshake(session_) == 0; }

void RawTlsPeer::send(std::span<const std::byte> data) {
  REQUIRE(gnutls_record_send(session_, data.data(), data.size()) ==
          static_cast<ssize_t>(data.size()));
}

ssize_t RawTlsPeer::receive(std::span<std::byte> into) {
  ssize_t n = GNUTLS_E_AGAIN;
  // A record with new keys has no data.
  for (int i = 0; i < 3 && n == GNUTLS_E_AGAIN; ++i) {
    n = gnutls_record_recv(session_, into.data(), into.size());
  }
  return n;
}

bool RawTlsPeer::update_key(bool both) {
  return gnutls_session_key_update(session_, both ? GNUTLS_KU_PEER : 0) == 0;
}

std::string RawTlsPeer::key(bool to_receive) const {
  gnutls_datum_t iv{}, key{};
  std::array<unsigned char, 8> sequence{};
  REQUIRE(gnutls_record_get_state(session_, to_receive ? 1 : 0, nullptr, &iv, &key,
                                  sequence.data()) == 0);
  return {reinterpret_cast<const char*>(key.data), key.size};
}

void RawTlsPeer::take_keys() {
  if (has_keys_) return;
  has_keys_ = true;
  gnutls_datum_t iv{}, key{};
  std::array<unsigned char, 8> sequence{};
  REQUIRE(gnutls_record_get_state(session_, 0, nullptr, &iv, &key, sequence.data()) == 0);
  REQUIRE(key.size == key_.size());
  REQUIRE(iv.size == iv_.size());
  std::memcpy(key_.data(), key.data, key.size);
  std::memcpy(iv_.data(), iv.data, iv.size);
  for (const unsigned char byte : sequence) sequence_ = sequence_ << 8 | byte;
}

std::vector<std::byte> RawTlsPeer::record(std::uint8_t type, std::span<const std::byte> content,
                                          std::size_t padding) {
  std::vector<std::byte> inner(content.begin(), content.end());
  inner.push_back(static_cast<std::byte>(type));
  inner.resize(inner.size() + padding);
  return seal(inner);
}

/// Source: RFC 8446, 5.2 and 5.3.
std::vector<std::byte> RawTlsPeer::seal(std::span<const std::byte> inner) {
  take_keys();
  std::array<unsigned char, 12> nonce = iv_;
  for (unsigned i = 0; i < 8; ++i) {
    nonce[11 - i] ^= static_cast<unsigned char>(sequence_ >> (8 * i));
  }
  ++sequence_;
  constexpr std::size_t kHeader = 5;
  std::size_t size = inner.size() + kTag;
  std::vector<std::byte> out(kHeader + size);
  const std::array<unsigned char, kHeader> header{23, 3, 3, static_cast<unsigned char>(size >> 8),
                                                  static_cast<unsigned char>(size)};
  std::memcpy(out.data(), header.data(), header.size());
  gnutls_aead_cipher_hd_t cipher = nullptr;
  const gnutls_datum_t key{key_.data(), static_cast<unsigned>(key_.size())};
  REQUIRE(gnutls_aead_cipher_init(&cipher, GNUTLS_CIPHER_AES_128_GCM, &key) == 0);
  const int error =
      gnutls_aead_cipher_encrypt(cipher, nonce.data(), nonce.size(), header.data(), header.size(),
                                 kTag, inner.data(), inner.size(), out.data() + kHeader, &size);
  gnutls_aead_cipher_deinit(cipher);
  REQUIRE(error == 0);
  return out;
}

OldTlsPeer::OldTlsPeer(int socket, const std::string& directory) {
  const auto file = [&directory](const char* name) { return directory + '/' + name; };
  REQUIRE(gnutls_certificate_allocate_credentials(&credentials_) == 0);
  REQUIRE(gnutls_certificate_set_x509_trust_file(credentials_, file("ca-cert.pem").c_str(),
                                                 GNUTLS_X509_FMT_PEM) == 1);
  REQUIRE(gnutls_certificate_set_x509_key_file(credentials_, file("client-cert.pem").c_str(),
                                               file("client-key.pem").c_str(),
                                               GNUTLS_X509_FMT_PEM) >= 0);
  REQUIRE(gnutls_init(&session_, GNUTLS_CLIENT | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL) == 0);
  REQUIRE(gnutls_priority_set_direct(session_, "NORMAL:-VERS-ALL:+VERS-TLS1.2", nullptr) == 0);
  REQUIRE(gnutls_credentials_set(session_, GNUTLS_CRD_CERTIFICATE, credentials_) == 0);
  gnutls_transport_set_int(session_, socket);
}

OldTlsPeer::~OldTlsPeer() {
  gnutls_deinit(session_);
  gnutls_certificate_free_credentials(credentials_);
}

bool OldTlsPeer::shake_hands() { return gnutls_handshake(session_) == 0; }

void OldTlsPeer::send(std::span<const std::byte> data) {
  REQUIRE(gnutls_record_send(session_, data.data(), data.size()) ==
          static_cast<ssize_t>(data.size()));
}

void OldTlsPeer::warn(unsigned times) {
  for (unsigned i = 0; i < times; ++i) {
    REQUIRE(gnutls_alert_send(session_, GNUTLS_AL_WARNING, GNUTLS_A_USER_CANCELED) == 0);
  }
}

}  // namespace rtrs::test
