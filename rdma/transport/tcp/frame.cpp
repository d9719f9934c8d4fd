// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/tcp/frame.hpp"

#include <isa-l/crc.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "rdma/client.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rtrs {
namespace {

std::atomic<std::uint64_t> damaged_frames{0};

}  // namespace

std::uint64_t digest_errors() { return damaged_frames.load(std::memory_order_relaxed); }

}  // namespace rtrs

namespace rtrs::tcp {

using wire::DecodeError;

void count_digest_error() { damaged_frames.fetch_add(1, std::memory_order_relaxed); }

namespace {

#if defined(__x86_64__)
const bool has_avx = __builtin_cpu_supports("avx") != 0;

/// ISA-L leaves the upper halves of the AVX registers in use. CPUs that have to keep them in SSE
/// instructions (Intel's since Skylake) run all following code slower until they are cleared.
[[gnu::target("avx")]] void clear_upper_halves() { _mm256_zeroupper(); }

void leave_library() {
  if (has_avx) clear_upper_halves();
}
#else
void leave_library() {}
#endif

}  // namespace

std::uint32_t crc_update(std::uint32_t state, ConstBytes bytes) {
  constexpr std::size_t kPiece = std::numeric_limits<int>::max();
  while (!bytes.empty()) {
    const std::size_t size = std::min(bytes.size(), kPiece);
    // The library takes a pointer to mutable bytes and does not write to them.
    auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
    state = crc32_iscsi(data, static_cast<int>(size), state);
    bytes = bytes.subspan(size);
  }
  leave_library();
  return state;
}

Hello make_hello(ConstBytes record, std::uint16_t digests) {
  Hello hello;
  hello.digests = digests;
  std::copy_n(record.begin(), std::min(record.size(), hello.record.size()), hello.record.begin());
  hello.crc = crc32c(wire::bytes_of(hello).first(offsetof(Hello, crc)));
  return hello;
}

wire::Result<Hello> decode_hello(ConstBytes bytes) {
  if (bytes.size() < sizeof(Hello)) return tl::unexpected(DecodeError::too_short);
  const auto hello = wire::copy_of<Hello>(bytes);
  if (hello.magic != kHelloMagic) return tl::unexpected(DecodeError::bad_magic);
  if (hello.version != kBindingVersion) return tl::unexpected(DecodeError::bad_version);
  if (hello.crc != crc32c(bytes.first(offsetof(Hello, crc)))) {
    count_digest_error();
    return tl::unexpected(DecodeError::digest_mismatch);
  }
  return hello;
}

wire::Result<FrameHeader> decode_frame_header(ConstBytes bytes, bool check_digest) {
  if (bytes.size() < sizeof(FrameHeader)) return tl::unexpected(DecodeError::too_short);
  const auto header = wire::copy_of<FrameHeader>(bytes);
  if (check_digest && header.header_crc != crc32c(bytes.first(offsetof(FrameHeader, header_crc)))) {
    count_digest_error();
    return tl::unexpected(DecodeError::digest_mismatch);
  }
  if (header.length > kMaxPayload) return tl::unexpected(DecodeError::bad_length);
  const bool has_immediate = (header.flags & kHasImmediate) != 0;
  switch (static_cast<Opcode>(header.opcode)) {
    case Opcode::send:
    case Opcode::write:
      return header;
    case Opcode::send_with_invalidate:
      if (header.length != 0 || has_immediate) return tl::unexpected(DecodeError::bad_value);
      return header;
    case Opcode::read:
      if (header.length != sizeof(ReadRequest) || has_immediate) {
        return tl::unexpected(DecodeError::bad_value);
      }
      return header;
    case Opcode::read_data:
      if (!has_immediate) return tl::unexpected(DecodeError::bad_value);
      return header;
  }
  return tl::unexpected(DecodeError::bad_type);
}

}  // namespace rtrs::tcp
