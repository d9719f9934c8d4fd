// SPDX-License-Identifier: BSD-3-Clause
// The headers of requests and replies, which a client and we agree on in the handshake.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "bridge/nbd/wire.hpp"

namespace rnbd::nbd {

/// Later ones take precedence: a client with extended headers gets no other replies.
enum class Framing : std::uint8_t {
  simple,      ///< compact requests, simple replies
  structured,  ///< compact requests, structured replies where there is something to tell
  extended,    ///< requests and replies with 64 bits for lengths
};

constexpr std::size_t request_size(Framing framing) {
  return framing == Framing::extended ? sizeof(ExtendedRequestHeader) : sizeof(RequestHeader);
}

/// A request's header, whatever its size.
struct RequestHead {
  bool garbage;         ///< it has another magic
  bool announced;       ///< extended: the client says that a payload follows
  std::uint16_t flags;  ///< the others
  Command command;
  Cookie cookie;
  std::uint64_t offset;  ///< bytes
  std::uint64_t length;  ///< bytes that it is about; those of `payload` where it has one
  /// Bytes that follow, also if the command may have none.
  std::uint64_t payload;
};

/// Takes request_size() bytes apart.
///
/// Threads: any; pure.
/// Source:  the NBD protocol, request message.
inline RequestHead decode_compact(const std::byte* bytes) {
  RequestHeader header;
  std::memcpy(&header, bytes, sizeof(header));
  const auto command = static_cast<Command>(std::uint16_t{header.type});
  const std::uint64_t length = header.length;
  return {.garbage = header.magic != kRequestMagic,
          .announced = false,
          .flags = header.flags,
          .command = command,
          .cookie = header.cookie,
          .offset = header.offset,
          .length = length,
          .payload = command == Command::write ? length : 0};
}

/// The same for extended headers.
///
/// Source:  the NBD protocol, extended request message.
inline RequestHead decode_extended(const std::byte* bytes) {
  ExtendedRequestHeader header;
  std::memcpy(&header, bytes, sizeof(header));
  const std::uint16_t flags = header.flags;
  const auto command = static_cast<Command>(std::uint16_t{header.type});
  const bool announced = (flags & kPayloadLength) != 0;
  // Writes should say so. QEMU 10 does not, sends it all the same, and its own server takes it.
  const bool has_payload = announced || command == Command::write;
  const std::uint64_t length = header.length;
  return {.garbage = header.magic != kExtendedRequestMagic,
          .announced = announced,
          .flags = static_cast<std::uint16_t>(flags & ~unsigned{kPayloadLength}),
          .command = command,
          .cookie = header.cookie,
          .offset = header.offset,
          .length = length,
          .payload = has_payload ? length : 0};
}

template <Framing framing>
RequestHead decode_head(const std::byte* bytes) {
  if constexpr (framing == Framing::extended) return decode_extended(bytes);
  return decode_compact(bytes);
}

/// The length of the range that a BLOCK_STATUS with this payload asks about. None: it does not ask
/// for exactly the one context that there is.
///
/// Units:   bytes; `size` is that of the payload.
/// Threads: any; pure.
inline std::optional<std::uint64_t> decode_filter(const std::byte* payload, std::size_t size) {
  StatusFilter filter;
  if (size != sizeof(filter)) return std::nullopt;
  std::memcpy(&filter, payload, sizeof(filter));
  if (filter.context != kBaseAllocationId) return std::nullopt;
  return filter.length;
}

}  // namespace rnbd::nbd
