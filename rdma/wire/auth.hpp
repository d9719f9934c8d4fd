// SPDX-License-Identifier: BSD-3-Clause
// The three messages by which both ends prove that they have a key.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "rdma/wire/endian.hpp"
#include "rdma/wire/result.hpp"

namespace rtrs::wire {

inline constexpr std::uint16_t kAuthHelloType = 0x0100;
inline constexpr std::uint16_t kAuthChallengeType = 0x0101;
inline constexpr std::uint16_t kAuthProofType = 0x0102;
inline constexpr std::uint16_t kAuthVersion = 1;

using Nonce = std::array<std::uint8_t, 32>;   ///< random, never used twice
using Digest = std::array<std::uint8_t, 32>;  ///< of SHA-256, or a MAC with it

/// Client to server, first of all on every connection.
/// Source: docs/protocol.md, authentication.
struct AuthHello {
  le16 type = kAuthHelloType;
  le16 version = kAuthVersion;
  le32 reserved0 = 0;
  Nonce nonce{};
  std::array<char, 64> key_name{};  ///< padded with NULs
  std::array<std::uint8_t, 24> reserved1{};
};
static_assert(sizeof(AuthHello) == 128);
static_assert(offsetof(AuthHello, nonce) == 8);
static_assert(offsetof(AuthHello, key_name) == 40);

/// Server to client.
/// Source: docs/protocol.md, authentication.
struct AuthChallenge {
  le16 type = kAuthChallengeType;
  le16 error = 0;  ///< 0, or a negative errno in two's complement: the server refuses
  le32 reserved0 = 0;
  Nonce nonce{};
  Digest proof{};  ///< that the server has the key
  std::array<std::uint8_t, 8> reserved1{};
};
static_assert(sizeof(AuthChallenge) == 80);
static_assert(offsetof(AuthChallenge, nonce) == 8);
static_assert(offsetof(AuthChallenge, proof) == 40);

/// Client to server.
/// Source: docs/protocol.md, authentication.
struct AuthProof {
  le16 type = kAuthProofType;
  std::array<std::uint8_t, 6> reserved0{};
  Digest proof{};  ///< that the client has the key
  std::array<std::uint8_t, 8> reserved1{};
};
static_assert(sizeof(AuthProof) == 48);
static_assert(offsetof(AuthProof, proof) == 8);

inline constexpr std::size_t kMaxAuthKeyName = sizeof(AuthHello::key_name);  ///< bytes

/// `key_name` has 1 to kMaxAuthKeyName bytes.
AuthHello make_auth_hello(const Nonce& nonce, std::string_view key_name);
/// 1 to kMaxAuthKeyName printable characters of a record that was decoded.
std::string_view key_name_of(const AuthHello& hello);

/// Errors: too_short, bad_type, bad_version, bad_value (a name that is none, bytes that are not 0).
Result<AuthHello> decode_auth_hello(ConstBytes bytes);

/// Errors: too_short, bad_type, bad_value (an errno that is none, bytes that are not 0).
Result<AuthChallenge> decode_auth_challenge(ConstBytes bytes);

/// The errno of a challenge that refuses, 0 of one that does not.
int error_of(const AuthChallenge& challenge);

/// Errors: too_short, bad_type, bad_value (bytes that are not 0).
Result<AuthProof> decode_auth_proof(ConstBytes bytes);

}  // namespace rtrs::wire
