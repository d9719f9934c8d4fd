// SPDX-License-Identifier: BSD-3-Clause
// A client with a shared key that makes records by hand: also such as no honest client sends.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct gnutls_session_int;
struct gnutls_certificate_credentials_st;
struct gnutls_psk_client_credentials_st;

namespace rtrs::test {

class RawTlsPeer {
 public:
  static constexpr std::uint8_t kAlert = 21, kHandshake = 22, kData = 23;

  /// Over this socket, which stays the caller's. `key` has 32 bytes.
  RawTlsPeer(int socket, const std::string& user, std::span<const std::byte> key);
  ~RawTlsPeer();
  RawTlsPeer(const RawTlsPeer&) = delete;
  RawTlsPeer& operator=(const RawTlsPeer&) = delete;

  /// True: it is through.
  bool shake_hands();

  // ---- As the library does it

  void send(std::span<const std::byte> data);
  /// Bytes, or an error of GnuTLS.
  ssize_t receive(std::span<std::byte> into);
  /// New keys to send with; `both`: and the other end must make some, too. False: refused.
  bool update_key(bool both);
  /// Of the keys to send or to receive with: differs when they are other ones.
  std::string key(bool to_receive) const;

  // ---- By hand; from the first one on nothing may be sent by the library

  /// The record of content, its type and so many zeros.
  std::vector<std::byte> record(std::uint8_t type, std::span<const std::byte> content,
                                std::size_t padding = 0);
  /// Of exactly this, which should end with a type.
  std::vector<std::byte> seal(std::span<const std::byte> inner);

 private:
  void take_keys();

  gnutls_session_int* session_ = nullptr;
  gnutls_psk_client_credentials_st* credentials_ = nullptr;
  bool has_keys_ = false;
  std::array<unsigned char, 16> key_{};
  std::array<unsigned char, 12> iv_{};
  std::uint64_t sequence_ = 0;
};

/// A client with TLS 1.2 and a certificate.
class OldTlsPeer {
 public:
  /// Over this socket, which stays the caller's; `directory` has the client's files.
  OldTlsPeer(int socket, const std::string& directory);
  ~OldTlsPeer();
  OldTlsPeer(const OldTlsPeer&) = delete;
  OldTlsPeer& operator=(const OldTlsPeer&) = delete;

  /// True: it is through.
  bool shake_hands();
  void send(std::span<const std::byte> data);
  /// Alerts that ask for nothing.
  void warn(unsigned times);

 private:
  gnutls_session_int* session_ = nullptr;
  gnutls_certificate_credentials_st* credentials_ = nullptr;
};

}  // namespace rtrs::test
