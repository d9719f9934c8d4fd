// SPDX-License-Identifier: BSD-3-Clause
// Input: a byte of features and of the ring's size, the ring's base, and the guest's memory, which
// begins with the ring: descriptors, available and used part.
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <utility>
#include <vector>

#include "bridge/vhost/guest_memory.hpp"
#include "bridge/vhost/split_ring.hpp"
#include "bridge/vhost/virtio_block.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace rnbd;
using namespace rnbd::vhost;

namespace {

constexpr std::uint64_t kMemory = 16 * 1024;
constexpr std::uint64_t kUser = 0x7f00'0000'0000;
constexpr unsigned kMostTaken = 64;

std::shared_ptr<GuestMemory> make_memory() {
  rtrs::OwnedFd file{::memfd_create("guest", MFD_CLOEXEC)};
  fuzz::require(::ftruncate(file.get(), kMemory) == 0, "there is memory");
  std::vector<rtrs::OwnedFd> files;
  files.push_back(std::move(file));
  const MemoryTable table{.count = 1, .regions = {{{0U, kMemory, kUser, 0U}}}};
  return GuestMemory::map(table, std::move(files)).value();
}

void check(const Chain& chain, std::uint32_t size, const GuestMemory& memory) {
  fuzz::require(chain.head < size, "a head is one of the ring's");
  fuzz::require(!chain.pieces.empty(), "a chain has a buffer");
  fuzz::require(chain.pieces.size() <= SplitRing::kMostPieces, "a chain is short");
  fuzz::require(chain.readable <= chain.pieces.size(), "some of it is read");
  for (const Piece& piece : chain.pieces) {
    std::vector<std::byte> bytes(std::min<std::uint32_t>(piece.length, 2 * kMemory));
    const bool read = memory.read(piece.address, bytes);
    fuzz::require(!read || bytes.empty() || bytes.size() <= kMemory - piece.address,
                  "only memory is read");
  }
}

void judge_as_request(const Chain& chain, const GuestMemory& memory) {
  static const Offer offer = [] {
    DeviceGeometry geometry;
    geometry.size = geometry.padded_size = geometry.max_discard = 1 << 20;
    return offer_of(geometry, /*read_only=*/false);
  }();
  RequestHeader header;
  RangeData range;
  if (chain.readable < 1 ||
      !memory.read(chain.pieces[0].address, std::as_writable_bytes(std::span{&header, 1}))) {
    return;
  }
  (void)memory.read(chain.pieces[0].address + sizeof(header),
                    std::as_writable_bytes(std::span{&range, 1}));
  const RequestShape shape{chain.pieces[0].length, chain.pieces.back().length};
  const Judgement judgement = judge(header, shape, range, offer, offer.features);
  if (!judgement.request) return;
  fuzz::require(judgement.request->offset <= 1 << 20 &&
                    (judgement.request->command == BlockCommand::get_id ||
                     judgement.request->length <= (1 << 20) - judgement.request->offset),
                "a request ends inside the disk");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::shared_ptr<GuestMemory> memory = make_memory();
  fuzz::Input input{data, size};
  const auto choice = input.take<std::uint8_t>();
  const auto base = input.take<std::uint16_t>();
  const std::uint32_t ring_size = 1U << (choice >> 2 & 3);
  std::byte* const all = memory->at_user(kUser, kMemory);
  const auto content = input.rest().first(std::min<std::size_t>(input.rest().size(), kMemory));
  std::memset(all, 0, kMemory);
  if (!content.empty()) std::memcpy(all, content.data(), content.size());

  const std::uint64_t available = SplitRing::bytes_of_descriptors(ring_size);
  const std::uint64_t used = (available + SplitRing::bytes_of_available(ring_size) + 3) / 4 * 4;
  const SplitRing::Parts parts{all, all + available, all + used};
  fuzz::require(SplitRing::is_possible(ring_size, parts), "the ring is one");
  SplitRing ring{
      ring_size, parts, base, {.event_index = (choice & 1) != 0, .indirect = (choice & 2) != 0}};
  Chain chain;
  for (unsigned i = 0; i < kMostTaken; ++i) {
    const SplitRing::Taken taken = ring.take(chain, *memory);
    if (taken != SplitRing::Taken::chain) break;
    check(chain, ring_size, *memory);
    judge_as_request(chain, *memory);
    ring.put(chain.head, 1);
    ring.publish();
    ring.want_kicks((i & 1) != 0);
  }
  fuzz::require(!memory->is_lost(), "all accesses are inside the memory");
  return 0;
}
