#include "bridge/backend/nbd_facts.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace rnbd {

namespace {

/// A block size of the server's, as a power of two within what an export can have.
std::uint32_t block_size(nbd_handle* h, int kind, std::uint32_t fallback) {
  const std::int64_t size = nbd_get_block_size(h, kind);
  if (size <= 0) return fallback;
  return std::bit_floor(
      static_cast<std::uint32_t>(std::clamp<std::int64_t>(size, 512, kMaxNbdBlock)));
}

/// Bytes per read and write command. At most what all servers take, even if this one takes more.
std::uint64_t max_payload(nbd_handle* h, std::uint32_t block) {
  constexpr std::uint64_t kMost = 32 * 1024 * 1024;
  const std::int64_t size = nbd_get_block_size(h, LIBNBD_SIZE_MAXIMUM);
  if (size <= 0) return kMost;
  return std::max<std::uint64_t>(std::min<std::uint64_t>(size, kMost) / block, 1) * block;
}

std::array<std::uint8_t, 16> uuid_of(const std::string& uri) {
  // NBD has no identity of storage: the same URI is taken for the same storage.
  std::array<std::uint8_t, 16> uuid{};
  std::uint64_t hash = 0xCBF29CE484222325;
  for (std::size_t half = 0; half < 2; ++half) {
    for (const char letter : uri) {
      hash = (hash ^ static_cast<std::uint8_t>(letter)) * 0x100000001B3;
    }
    std::memcpy(uuid.data() + 8 * half, &hash, sizeof hash);
  }
  uuid[6] = static_cast<std::uint8_t>((uuid[6] & 0x0F) | 0x80);  // version 8, free form
  uuid[8] = static_cast<std::uint8_t>((uuid[8] & 0x3F) | 0x80);
  return uuid;
}

}  // namespace

NbdFacts ask_facts(nbd_handle* h, const std::string& uri, bool read_only) {
  NbdFacts facts;
  BackendInfo& info = facts.info;
  info.size = static_cast<std::uint64_t>(std::max<std::int64_t>(nbd_get_size(h), 0));
  info.read_only = read_only || nbd_is_read_only(h) == 1;
  info.logical_block = block_size(h, LIBNBD_SIZE_MINIMUM, 512);
  info.physical_block = std::max(block_size(h, LIBNBD_SIZE_PREFERRED, 4096), info.logical_block);
  info.rotational = nbd_is_rotational(h) == 1;
  info.can_discard = nbd_can_trim(h) == 1;
  info.can_write_zeroes = nbd_can_zero(h) == 1;
  info.can_fast_zero = nbd_can_fast_zero(h) == 1;
  info.can_extents = nbd_can_meta_context(h, LIBNBD_CONTEXT_BASE_ALLOCATION) == 1;
  info.can_cache = nbd_can_cache(h) == 1;
  facts.can_flush = nbd_can_flush(h) == 1;
  facts.native_fua = nbd_can_fua(h) == 1;
  facts.multi_conn = nbd_can_multi_conn(h) == 1;
  facts.max_payload = max_payload(h, info.logical_block);
  info.volatile_cache = facts.can_flush;
  info.can_fua = true;  // by the server, or by a flush, or there is no cache to write through
  info.discard_granularity = info.can_discard ? info.logical_block : 0;
  info.uuid = uuid_of(uri);
  return facts;
}

std::string hindrance(const NbdFacts& before, const NbdFacts& now) {
  const BackendInfo& old = before.info;
  const BackendInfo& info = now.info;
  if (info.size != old.size) {
    return "its size was " + std::to_string(old.size) + " and is " + std::to_string(info.size);
  }
  if (info.read_only && !old.read_only) return "it is read-only now";
  if (info.logical_block > old.logical_block) return "its blocks are larger than before";
  if (now.max_payload < before.max_payload) return "it takes smaller requests than before";
  // Without flushes before, nobody asks for any.
  if (now.can_flush && !before.can_flush) return "it has a cache to be flushed now";
  const std::pair<const char*, bool> lost[] = {
      {"flush", before.can_flush && !now.can_flush},
      {"FUA", before.native_fua && !now.native_fua},
      {"several connections", before.multi_conn && !now.multi_conn},
      {"trim", old.can_discard && !info.can_discard},
      {"zeroing", old.can_write_zeroes && !info.can_write_zeroes},
      {"fast zeroing", old.can_fast_zero && !info.can_fast_zero},
      {"extents", old.can_extents && !info.can_extents},
      {"cache requests", old.can_cache && !info.can_cache}};
  for (const auto& [what, is_gone] : lost) {
    if (is_gone) return std::string{"it cannot do "} + what + " any more";
  }
  return "";
}

}  // namespace rnbd
