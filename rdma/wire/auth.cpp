// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/wire/auth.hpp"

#include <algorithm>
#include <span>

#include "rdma/wire/ensure.hpp"

namespace rtrs::wire {
namespace {

constexpr int kMaxErrnoOfChallenge = 4095;

template <class Record>
Result<Record> copy_message(ConstBytes bytes, std::uint16_t type) {
  if (bytes.size() < sizeof(Record)) return tl::unexpected(DecodeError::too_short);
  auto record = copy_of<Record>(bytes);
  if (record.type != type) return tl::unexpected(DecodeError::bad_type);
  return record;
}

template <class Bytes>
bool is_zero(const Bytes& bytes) {
  return std::ranges::all_of(bytes, [](auto byte) { return byte == 0; });
}

bool is_printable(char c) { return c > 0x20 && c < 0x7F; }

}  // namespace

AuthHello make_auth_hello(const Nonce& nonce, std::string_view key_name) {
  RTRS_ENSURE(!key_name.empty() && key_name.size() <= kMaxAuthKeyName);
  AuthHello hello;
  hello.nonce = nonce;
  std::ranges::copy(key_name, hello.key_name.begin());
  return hello;
}

std::string_view key_name_of(const AuthHello& hello) {
  const auto end = std::ranges::find(hello.key_name, '\0');
  return {hello.key_name.data(), static_cast<std::size_t>(end - hello.key_name.begin())};
}

Result<AuthHello> decode_auth_hello(ConstBytes bytes) {
  const auto hello = copy_message<AuthHello>(bytes, kAuthHelloType);
  if (!hello) return hello;
  if (hello->version != kAuthVersion) return tl::unexpected(DecodeError::bad_version);
  const auto name = key_name_of(*hello);
  const bool padded = is_zero(std::span{hello->key_name}.subspan(name.size()));
  const bool fits = !name.empty() && std::ranges::all_of(name, is_printable) && padded;
  if (!fits || hello->reserved0 != 0 || !is_zero(hello->reserved1)) {
    return tl::unexpected(DecodeError::bad_value);
  }
  return hello;
}

int error_of(const AuthChallenge& challenge) {
  return -static_cast<std::int16_t>(challenge.error.value());
}

Result<AuthChallenge> decode_auth_challenge(ConstBytes bytes) {
  const auto challenge = copy_message<AuthChallenge>(bytes, kAuthChallengeType);
  if (!challenge) return challenge;
  const int error = error_of(*challenge);
  if (error < 0 || error > kMaxErrnoOfChallenge || challenge->reserved0 != 0 ||
      !is_zero(challenge->reserved1)) {
    return tl::unexpected(DecodeError::bad_value);
  }
  return challenge;
}

Result<AuthProof> decode_auth_proof(ConstBytes bytes) {
  const auto proof = copy_message<AuthProof>(bytes, kAuthProofType);
  if (!proof) return proof;
  if (!is_zero(proof->reserved0) || !is_zero(proof->reserved1)) {
    return tl::unexpected(DecodeError::bad_value);
  }
  return proof;
}

}  // namespace rtrs::wire
