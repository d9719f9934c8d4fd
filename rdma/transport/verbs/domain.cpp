// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/verbs/domain.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "rdma/memlock.hpp"
#include "rdma/transport/verbs/cm.hpp"

namespace rtrs::verbs {
namespace {

/// Only we receive into it, and send from it.
constexpr int kLocalAccess = IBV_ACCESS_LOCAL_WRITE;
/// The peer writes into it; we send from it.
constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
/// The peer writes into it through memory windows only.
constexpr int kWindowedAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;

/// The system did not let memory be locked, as far as an errno can tell.
bool is_for_want_of_memory(int error) {
  return error == ENOMEM || error == EAGAIN || error == EPERM;
}

std::string memlock_advice(int error) {
  return is_for_want_of_memory(error) ? std::string{" ("} + kMemlockAdvice + ')' : "";
}

Failure cannot_lock(std::size_t size, int error) {
  return {ENOMEM, "cannot register " + std::to_string(size) +
                      " bytes of memory for RDMA: " + describe(error) + memlock_advice(error)};
}

}  // namespace

Failure refused_queue_pair(const char* device, const ibv_qp_cap& asked, unsigned limit, int error,
                           const OptionWords& words) {
  const bool fits = asked.max_send_wr <= limit && asked.max_recv_wr <= limit;
  std::string text =
      std::string{device} + ": no queue pair for " + std::to_string(asked.max_send_wr) +
      " sends and " + std::to_string(asked.max_recv_wr) + " receives: " + describe(error) +
      " (the device takes up to " + std::to_string(limit) + " of each; " + words.large_queue_depth +
      ", or let programs that have many "
      "connections end";
  if (fits && is_for_want_of_memory(error)) text += std::string{", or "} + kMemlockAdvice;
  return {error, text + ')'};
}

Failure refused_completions(const char* device, unsigned asked, unsigned limit,
                            const OptionWords& words) {
  return {ENOMEM, std::string{device} + ": no completion queue of " + std::to_string(asked) +
                      " entries: the device takes up to " + std::to_string(limit) + " (" +
                      words.large_queue_depth + ")"};
}

Failure refused(const char* what, int error) {
  return {error, std::string{"the RDMA device refused "} + what + ": " + describe(error) +
                     memlock_advice(error)};
}

tl::expected<void, Failure> can_reserve_keys(ibv_context* device) {
  ibv_device_attr attributes{};
  if (const int error = ibv_query_device(device, &attributes); error != 0) {
    return tl::unexpected(refused("to tell whether it has memory windows", error));
  }
  if ((attributes.device_cap_flags & IBV_DEVICE_MEM_WINDOW) != 0) return {};
  return tl::unexpected(Failure{
      ENOTSUP, std::string{"always-invalidate needs memory windows, which the RDMA device "} +
                   ibv_get_device_name(device->device) +
                   " does not have (leave always-invalidate out, or use another device)"});
}

std::uint8_t reads_at_once(ibv_context* device) {
  ibv_device_attr limits{};
  if (ibv_query_device(device, &limits) != 0) return 1;
  const int most = std::min(limits.max_qp_rd_atom, limits.max_qp_init_rd_atom);
  return static_cast<std::uint8_t>(std::clamp<int>(most, 1, QueuePair::kMaxUnconfirmed));
}

tl::expected<std::unique_ptr<Region>, Failure> Region::allocate(ibv_pd* domain, std::size_t size,
                                                                bool peer_writes) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return tl::unexpected(cannot_lock(size, errno));
  std::unique_ptr<Region> region{
      new Region{{static_cast<std::byte*>(memory), size}, /*owned=*/true}};
  auto ok = region->register_with(domain, peer_writes ? kAccess : kLocalAccess, size);
  if (!ok) return tl::unexpected(ok.error());
  return region;
}

tl::expected<std::shared_ptr<Region>, Failure> Region::adopt(ibv_pd* domain, MutableBytes memory,
                                                             bool with_windows) {
  std::shared_ptr<Region> region{new Region{memory, /*owned=*/false}};
  auto ok = with_windows ? region->register_with(domain, kWindowedAccess, memory.size())
                         : region->register_with(domain, kAccess, kMostAtOnce);
  if (!ok) return tl::unexpected(ok.error());
  return region;
}

tl::expected<std::shared_ptr<Region>, Failure> Region::open(ibv_pd* domain, MutableBytes memory,
                                                            unsigned access) {
  int allowed = (access & kRegionRead) != 0 ? IBV_ACCESS_REMOTE_READ : 0;
  // A region that others may write must be writable for its owner.
  if ((access & kRegionWrite) != 0) allowed |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE;
  std::shared_ptr<Region> region{new Region{memory, /*owned=*/false}};
  auto ok = region->register_with(domain, allowed, memory.size());
  if (!ok) return tl::unexpected(ok.error());
  return region;
}

tl::expected<void, Failure> Region::register_with(ibv_pd* domain, int access, std::size_t at_once) {
  for (MutableBytes rest = bytes_;; rest = rest.subspan(kStride)) {
    const std::size_t size = std::min(rest.size(), at_once);
    ibv_mr* registration = ibv_reg_mr(domain, rest.data(), size, access);
    if (registration == nullptr) return tl::unexpected(cannot_lock(bytes_.size(), errno));
    registrations_.push_back(registration);
    if (size == rest.size()) return {};
  }
}

std::size_t Region::piece_of(ConstBytes part) const {
  const auto offset = static_cast<std::size_t>(part.data() - bytes_.data());
  return std::min(offset / kStride, registrations_.size() - 1);
}

bool Region::contains(ConstBytes part) const {
  if (part.data() < bytes_.data()) return false;
  if (part.data() + part.size() > bytes_.data() + bytes_.size()) return false;
  const ibv_mr* registration = registrations_[piece_of(part)];
  return part.data() + part.size() <=
         static_cast<const std::byte*>(registration->addr) + registration->length;
}

Region::~Region() {
  for (ibv_mr* registration : registrations_) ibv_dereg_mr(registration);
  if (owned_) munmap(bytes_.data(), bytes_.size());
}

tl::expected<std::shared_ptr<Domain>, Failure> Domain::create(ibv_context* device, Log log,
                                                              const OptionWords& words) {
  ibv_pd* handle = ibv_alloc_pd(device);
  if (handle == nullptr) return tl::unexpected(refused("a protection domain", errno));
  std::shared_ptr<Domain> domain{new Domain{device, handle, AsyncEvents::of(device), words}};
  domain->events_->add_log(domain.get(), std::move(log));
  return domain;
}

Domain::~Domain() {
  events_->forget_log(this);
  exposed_.clear();
  retirement_.finish();
  for (ibv_mw* window : key_windows_) ibv_dealloc_mw(window);
  ibv_dealloc_pd(handle_);
}

tl::expected<std::shared_ptr<const Region>, Failure> Domain::adopt(MutableBytes memory) {
  std::erase_if(regions_, [](const auto& region) { return region.expired(); });
  for (const auto& known : regions_) {
    const auto region = known.lock();
    if (region && region->is(memory)) return region;
  }
  auto region = Region::adopt(handle_, memory, /*with_windows=*/!key_windows_.empty());
  if (region) regions_.push_back(*region);
  return region;
}

tl::expected<RemoteMemory, int> Domain::expose(MutableBytes memory, unsigned access) {
  if (memory.empty() || memory.size() > kMaxRegion) return tl::unexpected(EINVAL);
  auto region = Region::open(handle_, memory, access);
  if (!region) return tl::unexpected(region.error().error);
  const std::uint32_t key = (*region)->remote_key();
  exposed_[key] = *std::move(region);
  return RemoteMemory{reinterpret_cast<std::uintptr_t>(memory.data()), key};
}

void Domain::retire(RemoteMemory where, std::function<void()> dead) {
  std::vector<std::shared_ptr<Region>> ended;
  if (const auto found = exposed_.find(where.key); found != exposed_.end()) {
    ended.push_back(std::move(found->second));
    exposed_.erase(found);
  }
  retirement_.add({std::move(ended), std::move(dead)});
}

void Domain::retire_all(std::function<void()> dead) {
  std::vector<std::shared_ptr<Region>> ended;
  for (auto& [key, region] : exposed_) ended.push_back(std::move(region));
  exposed_.clear();
  retirement_.add({std::move(ended), std::move(dead)});
}

tl::expected<void, Failure> Domain::reserve_keys(unsigned count) {
  if (auto able = can_reserve_keys(device_); !able) return able;
  while (key_windows_.size() < count) {
    ibv_mw* window = ibv_alloc_mw(handle_, IBV_MW_TYPE_1);
    if (window == nullptr) return tl::unexpected(refused("a memory window", errno));
    key_windows_.push_back(window);
  }
  return {};
}

Retirement::~Retirement() { finish(); }

void Retirement::add(Job job) {
  const std::lock_guard lock{mutex_};
  jobs_.push_back(std::move(job));
  if (!thread_.joinable()) thread_ = std::thread{[this] { run(); }};
  changed_.notify_one();
}

void Retirement::finish() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock{mutex_};
    finishing_ = true;
    changed_.notify_one();
  }
  thread_.join();
}

void Retirement::run() {
  std::unique_lock lock{mutex_};
  for (;;) {
    changed_.wait(lock, [this] { return finishing_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job.regions.clear();
    job.dead();
    job = {};
    lock.lock();
  }
}

}  // namespace rtrs::verbs
