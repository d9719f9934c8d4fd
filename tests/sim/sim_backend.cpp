// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/sim_backend.hpp"

#include "tests/sim/disk.hpp"
#include "tests/sim/storage.hpp"

namespace sim {
namespace {

class SimQueue final : public rnbd::BackendQueue {
 public:
  SimQueue(Storage& storage, unsigned disk)
      : storage_{storage}, disk_{disk}, number_{storage.open_queue()} {}
  ~SimQueue() override { storage_.close_queue(number_); }
  void submit(rnbd::BackendRequest& request) override { storage_.submit(number_, disk_, request); }
  bool broken() const override { return storage_.is_broken(number_); }

 private:
  Storage& storage_;
  unsigned disk_;
  std::uint64_t number_;
};

class SimBackend final : public rnbd::Backend {
 public:
  SimBackend(Storage& storage, const Disk& disk, bool read_only)
      : storage_{storage}, disk_{disk.number()} {
    const DiskKnobs& knobs = disk.knobs();
    info_.size = knobs.size;
    info_.uuid = knobs.uuid;
    info_.logical_block = knobs.block;
    info_.read_only = knobs.backend_read_only || read_only;
    info_.can_discard = knobs.can_discard;
    info_.can_write_zeroes = knobs.can_write_zeroes;
    info_.can_fast_zero = knobs.can_fast_zero;
    info_.can_extents = info_.can_cache = true;
    info_.can_flush = knobs.can_flush;
    info_.can_fua = knobs.can_fua;
    info_.volatile_cache = knobs.volatile_cache;
    info_.discard_granularity = knobs.discard_granularity;
  }
  const rnbd::BackendInfo& info() const override { return info_; }
  std::unique_ptr<rnbd::BackendQueue> open_queue(rtrs::Reactor*) override {
    return std::make_unique<SimQueue>(storage_, disk_);
  }

 private:
  Storage& storage_;
  unsigned disk_;
  rnbd::BackendInfo info_;
};

}  // namespace

std::unique_ptr<rnbd::Backend> make_backend(Storage& storage, const Disk& disk, bool read_only) {
  return std::make_unique<SimBackend>(storage, disk, read_only);
}

}  // namespace sim
