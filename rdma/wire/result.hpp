// SPDX-License-Identifier: BSD-3-Clause
// The result of decoding bytes of a peer.
#pragma once

#include <cstdint>
#include <tl/expected.hpp>

namespace rtrs::wire {

/// Why bytes of a peer were refused.
enum class DecodeError : std::uint8_t {
  too_short,        ///< fewer bytes than the message needs
  too_long,         ///< more bytes than the message may have
  bad_magic,        ///< not our protocol
  bad_version,      ///< a major version that we do not speak
  bad_type,         ///< unknown or unexpected message type
  bad_count,        ///< a number of descriptors, connections or entries that cannot be
  bad_length,       ///< a length field that contradicts another one or the bytes
  bad_name,         ///< a name that is not terminated, empty, or has forbidden characters
  bad_value,        ///< any other field outside its range
  refused,          ///< the peer answered with an error of its own
  digest_mismatch,  ///< a checksum does not match the bytes
};

template <class T>
using Result = tl::expected<T, DecodeError>;

/// A sentence for logs and error messages.
constexpr const char* to_string(DecodeError error) {
  switch (error) {
    case DecodeError::too_short:
      return "message is too short";
    case DecodeError::too_long:
      return "message is too long";
    case DecodeError::bad_magic:
      return "wrong magic number (the peer does not speak RTRS)";
    case DecodeError::bad_version:
      return "unsupported protocol version";
    case DecodeError::bad_type:
      return "unexpected message type";
    case DecodeError::bad_count:
      return "impossible count";
    case DecodeError::bad_length:
      return "inconsistent length";
    case DecodeError::bad_name:
      return "malformed name";
    case DecodeError::bad_value:
      return "field out of range";
    case DecodeError::refused:
      return "the peer refused";
    case DecodeError::digest_mismatch:
      return "checksum mismatch: bytes were damaged on the way";
  }
  return "unknown decode error";
}

}  // namespace rtrs::wire
