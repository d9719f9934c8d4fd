#include "rdma/transport/verbs/domain.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace rtrs::verbs {
namespace {

/// The peer writes into it; we send from it.
constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

Failure cannot_lock(std::size_t size, int error) {
  std::string text = "cannot register " + std::to_string(size) +
                     " bytes of memory for RDMA: " + strerrordesc_np(error);
  if (error == ENOMEM || error == EAGAIN || error == EPERM) {
    text += " (raise the limit of locked memory: 'ulimit -l', or LimitMEMLOCK= in the unit)";
  }
  return {ENOMEM, std::move(text)};
}

}  // namespace

tl::expected<std::unique_ptr<Region>, Failure> Region::allocate(ibv_pd* domain, std::size_t size) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return tl::unexpected(cannot_lock(size, errno));
  std::unique_ptr<Region> region{
      new Region{{static_cast<std::byte*>(memory), size}, /*owned=*/true}};
  if (auto ok = region->register_with(domain); !ok) return tl::unexpected(ok.error());
  return region;
}

tl::expected<std::unique_ptr<Region>, Failure> Region::adopt(ibv_pd* domain, MutableBytes memory) {
  std::unique_ptr<Region> region{new Region{memory, /*owned=*/false}};
  if (auto ok = region->register_with(domain); !ok) return tl::unexpected(ok.error());
  return region;
}

tl::expected<void, Failure> Region::register_with(ibv_pd* domain) {
  registration_ = ibv_reg_mr(domain, bytes_.data(), bytes_.size(), kAccess);
  if (registration_ == nullptr) return tl::unexpected(cannot_lock(bytes_.size(), errno));
  return {};
}

Region::~Region() {
  if (registration_ != nullptr) ibv_dereg_mr(registration_);
  if (owned_) munmap(bytes_.data(), bytes_.size());
}

tl::expected<std::shared_ptr<Domain>, Failure> Domain::create(ibv_context* device) {
  ibv_pd* handle = ibv_alloc_pd(device);
  if (handle == nullptr) {
    return tl::unexpected(Failure{
        errno, std::string{"cannot allocate a protection domain: "} + strerrordesc_np(errno)});
  }
  return std::shared_ptr<Domain>{new Domain{device, handle}};
}

Domain::~Domain() {
  regions_.clear();
  ibv_dealloc_pd(handle_);
}

tl::expected<void, Failure> Domain::adopt(MutableBytes memory) {
  if (find(memory) != nullptr) return {};
  auto region = Region::adopt(handle_, memory);
  if (!region) return tl::unexpected(region.error());
  regions_.push_back(std::move(*region));
  return {};
}

const Region* Domain::find(ConstBytes part) const {
  for (const auto& region : regions_) {
    if (region->contains(part)) return region.get();
  }
  return nullptr;
}

}  // namespace rtrs::verbs
