// SPDX-License-Identifier: BSD-3-Clause
// A split virtqueue, as the device sees it: chains of buffers in, and their ends out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace rnbd::vhost {

class GuestMemory;

/// A buffer of the guest.
struct Piece {
  std::uint64_t address = 0;  ///< of the guest; not checked
  std::uint32_t length = 0;   ///< bytes
};

/// A chain of buffers: those that the device reads, and behind them those that it writes.
struct Chain {
  std::uint16_t head = 0;
  std::vector<Piece> pieces;
  std::size_t readable = 0;  ///< pieces

  std::span<const Piece> to_read() const { return {pieces.data(), readable}; }
  std::span<const Piece> to_write() const { return std::span{pieces}.subspan(readable); }
};

/// The state of one ring between its start and its stop.
///
/// The driver is hostile. Each field of a descriptor is read once, into a local variable, and is
/// judged there. A chain has at most as many descriptors as its table, which is the end of loops. A
/// table of indirect descriptors is copied before it is looked at.
///
/// Threads: one at a time; the driver writes meanwhile.
/// Source:  the specification of virtio 1.2, split virtqueues.
class SplitRing {
 public:
  /// Descriptors in a chain, at most.
  static constexpr std::size_t kMostPieces = 1024;

  struct Parts {
    std::byte* descriptors = nullptr;
    std::byte* available = nullptr;
    std::byte* used = nullptr;
  };
  /// Units: bytes of the parts of a ring with so many descriptors.
  static std::uint64_t bytes_of_descriptors(std::uint32_t size) { return 16ULL * size; }
  static std::uint64_t bytes_of_available(std::uint32_t size) { return 6 + 2ULL * size; }
  static std::uint64_t bytes_of_used(std::uint32_t size) { return 6 + 8ULL * size; }
  /// False: no ring may have this size, or its parts lie so.
  static bool is_possible(std::uint32_t size, const Parts& parts);

  struct Features {
    bool event_index = false;
    bool indirect = false;
  };

  SplitRing() = default;
  /// The ring goes on at `base`, the number of chains that were taken before. It is possible, and
  /// all of it can be accessed.
  SplitRing(std::uint32_t size, const Parts& parts, std::uint16_t base, Features features);
  /// The same ring at another place of this process.
  void move_to(const Parts& parts) { parts_ = parts; }

  enum class Taken : std::uint8_t { none, chain, broken };
  /// Takes the next chain. Broken: the driver has broken the rules, and the ring must stop.
  Taken take(Chain& chain, const GuestMemory& memory);
  /// The last chains count as never taken. They were not given back.
  void take_back(std::uint16_t chains) { taken_ = static_cast<std::uint16_t>(taken_ - chains); }
  /// Gives a chain back, into which `written` bytes were written.
  void put(std::uint16_t head, std::uint32_t written);
  /// Shows the driver all that was given back. True: it wants to be called.
  bool publish();
  /// True: there is a chain to take.
  bool has_more() const;
  /// Tells the driver whether it should kick for new chains. Look again after `true`: it may have
  /// added one before it saw that.
  void want_kicks(bool wanted);
  /// The number of chains that were taken, which wraps.
  std::uint16_t base() const { return taken_; }

 private:
  struct Descriptor;
  bool collect(Chain& chain, std::uint16_t head, const GuestMemory& memory);
  bool collect_indirect(Chain& chain, const Descriptor& table, const GuestMemory& memory);
  static bool append(Chain& chain, const Descriptor& descriptor);

  std::uint16_t* available_flags() const;
  std::uint16_t* available_index() const;
  std::uint16_t* used_flags() const;
  std::uint16_t* used_index() const;
  std::uint16_t* used_event() const;
  std::uint16_t* available_event() const;

  std::uint16_t size_ = 0;
  Parts parts_;
  Features features_;
  std::uint16_t taken_ = 0;
  std::uint16_t seen_ = 0;  ///< the driver's index, when it was last read
  std::uint16_t used_ = 0;
  std::uint16_t published_ = 0;
  bool called_ = false;           ///< since the start; then `published_` is known to the driver
  std::vector<std::byte> table_;  ///< of indirect descriptors
};

}  // namespace rnbd::vhost
