// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/vhost/guest_memory.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

namespace rnbd::vhost {
namespace {

// ---- Files that fail ----------------------------------------------------------------------------

/// A mapping that the handler may replace.
struct Mapping {
  std::uintptr_t begin = 0;  ///< 0: there is none
  std::uintptr_t end = 0;
  std::atomic<bool>* lost = nullptr;
};

/// A place for a mapping, which the handler reads while another thread may change it.
///
/// Threads: set() one at a time; find() any, also in a handler of signals.
class Guarded {
 public:
  bool is_free() const { return begin_ == 0; }
  void set(const Mapping& mapping) {
    ++version_;
    begin_ = mapping.begin;
    end_ = mapping.end;
    lost_ = mapping.lost;
    ++version_;
  }
  /// None while it changes: that is no mapping that the calling thread has in use.
  std::optional<Mapping> find(std::uintptr_t address) const {
    const unsigned before = version_;
    const Mapping mapping{begin_, end_, lost_};
    if (before % 2 != 0 || version_ != before) return std::nullopt;
    if (address < mapping.begin || address >= mapping.end) return std::nullopt;
    return mapping;
  }

 private:
  std::atomic<unsigned> version_{0};  ///< odd while it changes
  std::atomic<std::uintptr_t> begin_{0};
  std::atomic<std::uintptr_t> end_{0};
  std::atomic<std::atomic<bool>*> lost_{nullptr};
};
static_assert(std::atomic<std::uintptr_t>::is_always_lock_free);

/// Tables of two clients, and for each the next one while it replaces the first.
constexpr std::size_t kMostGuarded = 4 * std::size_t{kMaxRegions};
std::array<Guarded, kMostGuarded> guarded;
std::mutex guarding;  ///< for those that take and give back places
struct sigaction earlier {};

/// The handler calls mmap(2), which is a bare system call, and touches atomics without locks. The
/// instruction that has failed is run again when it returns.
void on_bus_error(int signal, siginfo_t* info, void* /*context*/) {
  const int saved = errno;
  const auto at = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const bool by_the_kernel = info->si_code > 0;
  for (const Guarded& each : guarded) {
    const auto mapping = by_the_kernel ? each.find(at) : std::nullopt;
    if (!mapping) continue;
    // Readers of the zeroes look at it behind them, so it is said before they can be there.
    mapping->lost->store(true, std::memory_order_release);
    // The whole is replaced, as a part of a huge page cannot be.
    void* const empty = ::mmap(reinterpret_cast<void*>(mapping->begin),
                               mapping->end - mapping->begin, PROT_READ | PROT_WRITE,
                               MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (empty == MAP_FAILED) break;
    errno = saved;
    return;
  }
  ::sigaction(SIGBUS, &earlier, nullptr);
  if (!by_the_kernel) ::raise(signal);
  errno = saved;
}

void handle_bus_errors() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = &on_bus_error;
    action.sa_flags = SA_SIGINFO;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &earlier);
  });
}

/// False: there are too many.
bool guard(std::byte* memory, std::size_t size, std::atomic<bool>& lost) {
  const std::lock_guard lock{guarding};
  const auto place = std::ranges::find_if(guarded, &Guarded::is_free);
  if (place == guarded.end()) return false;
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  place->set({begin, begin + size, &lost});
  return true;
}

void unguard(const std::byte* memory) {
  const std::lock_guard lock{guarding};
  for (Guarded& each : guarded) {
    if (each.find(reinterpret_cast<std::uintptr_t>(memory))) each.set({});
  }
}

// ---- Regions ------------------------------------------------------------------------------------

constexpr std::uint64_t kMostMemory = std::uint64_t{1} << 46;  ///< bytes of a file; a mapping's

bool wraps(std::uint64_t begin, std::uint64_t size) { return begin + size < begin; }

bool overlap(std::uint64_t a, std::uint64_t a_size, std::uint64_t b, std::uint64_t b_size) {
  return a < b + b_size && b < a + a_size;
}

std::string reason(int error) { return strerrordesc_np(error); }

}  // namespace

tl::expected<std::shared_ptr<GuestMemory>, std::string> GuestMemory::map(
    const MemoryTable& table, std::vector<rtrs::OwnedFd> files) {
  handle_bus_errors();
  const std::shared_ptr<GuestMemory> memory{new GuestMemory};
  for (std::size_t i = 0; i < table.count; ++i) {
    std::string wrong = memory->add(table.regions.at(i), files.at(i).get());
    if (!wrong.empty()) return tl::unexpected(std::move(wrong));
  }
  return memory;
}

/// Returns "" or the mistake.
std::string GuestMemory::add(const MemoryRegion& region, int file) {
  const std::uint64_t size = region.size;
  const std::uint64_t offset = region.offset;
  if (size == 0 || size > kMostMemory || offset > kMostMemory || wraps(region.guest, size) ||
      wraps(region.user, size)) {
    return "a region of memory has an impossible place or size";
  }
  for (const Region& other : regions_) {
    if (overlap(region.guest, size, other.guest, other.size) ||
        overlap(region.user, size, other.user, other.size)) {
      return "two regions of memory overlap";
    }
  }
  struct stat status {};
  if (::fstat(file, &status) != 0) return "a memory file: " + reason(errno);
  if (!S_ISREG(status.st_mode)) return "a memory file is no file (share memory with a memfd)";
  if (static_cast<std::uint64_t>(status.st_size) < offset + size)
    return "a memory file is shorter than its region";
  // Files of huge pages have these as their blocks, and are mapped in whole ones.
  const auto block = static_cast<std::uint64_t>(std::max<blksize_t>(status.st_blksize, 4096));
  const std::uint64_t before_it = offset % block;
  const std::uint64_t length = (before_it + size + block - 1) / block * block;
  void* const mapped = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                              file, static_cast<off_t>(offset - before_it));
  if (mapped == MAP_FAILED) return "a memory file cannot be mapped: " + reason(errno);
  auto* const bytes = static_cast<std::byte*>(mapped);
  if (!guard(bytes, length, lost_)) {
    ::munmap(mapped, length);
    return "there are too many regions of memory";
  }
  ::madvise(mapped, length, MADV_DONTDUMP);  // the content is the guest's secret
  regions_.push_back({region.guest, size, region.user, bytes + before_it, bytes, length});
  return "";
}

GuestMemory::~GuestMemory() {
  for (const Region& region : regions_) {
    unguard(region.mapped);
    ::munmap(region.mapped, region.mapped_size);
  }
}

/// The first bytes from an address on that lie in one region; none: there are none.
std::span<std::byte> GuestMemory::piece_at(std::uint64_t guest, std::size_t most) const {
  for (const Region& region : regions_) {
    const std::uint64_t from = guest - region.guest;  // huge for an address before the region
    if (guest < region.guest || from >= region.size) continue;
    return {region.memory + from,
            static_cast<std::size_t>(std::min<std::uint64_t>(most, region.size - from))};
  }
  return {};
}

bool GuestMemory::read(std::uint64_t guest, MutableBytes into) const {
  while (!into.empty()) {
    const std::span<std::byte> piece = piece_at(guest, into.size());
    if (piece.empty()) return false;
    std::memcpy(into.data(), piece.data(), piece.size());
    into = into.subspan(piece.size());
    guest += piece.size();  // an address never wraps to one of another region: see add()
  }
  return !is_lost();
}

bool GuestMemory::write(std::uint64_t guest, ConstBytes from) const {
  while (!from.empty()) {
    const std::span<std::byte> piece = piece_at(guest, from.size());
    if (piece.empty()) return false;
    std::memcpy(piece.data(), from.data(), piece.size());
    from = from.subspan(piece.size());
    guest += piece.size();
  }
  return !is_lost();
}

std::byte* GuestMemory::at_user(std::uint64_t user, std::uint64_t length) const {
  for (const Region& region : regions_) {
    const std::uint64_t from = user - region.user;
    if (user >= region.user && from < region.size && length <= region.size - from)
      return region.memory + from;
  }
  return nullptr;
}

}  // namespace rnbd::vhost
