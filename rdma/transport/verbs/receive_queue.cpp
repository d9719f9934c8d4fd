// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/verbs/receive_queue.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "rdma/transport/verbs/cm.hpp"
#include "rdma/wire/ensure.hpp"

namespace rtrs::verbs {
namespace {

constexpr unsigned kReceiveBatch = 32;
constexpr unsigned kPoolShift = 32;
constexpr std::uint64_t kNoBuffer = ReceiveQueue::kIdBit;  ///< pool 0 = none
constexpr std::size_t kAlignment = 8;

}  // namespace

void ReceiveQueue::add(unsigned count, std::uint32_t bytes) {
  if (count == 0) return;
  if (!wanted_.empty() && wanted_.back().bytes == bytes) {
    wanted_.back().count += count;
  } else {
    wanted_.push_back({count, bytes});
  }
}

std::string ReceiveQueue::flush() {
  for (const Wanted& wanted : wanted_) {
    if (std::string error = post(wanted); !error.empty()) return error;
  }
  wanted_.clear();
  return {};
}

std::string ReceiveQueue::post(const Wanted& wanted) {
  const std::size_t pool_index = wanted.bytes > 0 ? pool_of(wanted.bytes) : 0;
  if (wanted.bytes > 0 && pools_[pool_index - 1].free.size() < wanted.count) {
    Pool& pool = pools_[pool_index - 1];
    const auto missing = static_cast<unsigned>(wanted.count - pool.free.size());
    if (std::string error = grow(pool, missing); !error.empty()) return error;
  }
  for (unsigned left = wanted.count; left > 0;) {
    std::array<ibv_recv_wr, kReceiveBatch> requests{};
    std::array<ibv_sge, kReceiveBatch> elements{};
    const unsigned n = std::min(left, kReceiveBatch);
    for (unsigned i = 0; i < n; ++i) {
      ibv_recv_wr& request = requests[i];
      request.wr_id = kNoBuffer;
      request.next = i + 1 < n ? &requests[i + 1] : nullptr;
      if (wanted.bytes == 0) continue;
      Pool& pool = pools_[pool_index - 1];
      const std::uint32_t index = pool.free.back();
      pool.free.pop_back();
      request.wr_id = kIdBit | (std::uint64_t{pool_index} << kPoolShift) | index;
      elements[i] = {reinterpret_cast<std::uintptr_t>(pool.buffers[index].memory), wanted.bytes,
                     pool.buffers[index].key};
      request.sg_list = &elements[i];
      request.num_sge = 1;
    }
    ibv_recv_wr* bad = nullptr;
    if (const int error = ibv_post_recv(queue_pair_, requests.data(), &bad); error != 0) {
      return std::string{"cannot post receives: "} + describe(error);
    }
    left -= n;
  }
  return {};
}

std::size_t ReceiveQueue::pool_of(std::uint32_t bytes) {
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    if (pools_[i].bytes == bytes) return i + 1;
  }
  pools_.emplace_back().bytes = bytes;
  return pools_.size();
}

std::string ReceiveQueue::grow(Pool& pool, unsigned count) {
  const std::size_t stride = (pool.bytes + kAlignment - 1) / kAlignment * kAlignment;
  auto region = Region::allocate(domain_, stride * count);
  if (!region) return region.error().text;
  for (unsigned i = 0; i < count; ++i) {
    pool.free.push_back(static_cast<std::uint32_t>(pool.buffers.size()));
    pool.buffers.push_back({(*region)->bytes().data() + i * stride, (*region)->local_key()});
  }
  pool.regions.push_back(std::move(*region));
  return {};
}

ConstBytes ReceiveQueue::message(std::uint64_t id, std::uint32_t bytes) const {
  const std::size_t pool = (id & ~kIdBit) >> kPoolShift;
  if (pool == 0) return {};
  const Pool& from = pools_[pool - 1];
  RTRS_ENSURE(bytes <= from.bytes);
  return {from.buffers[static_cast<std::uint32_t>(id)].memory, bytes};
}

void ReceiveQueue::release(std::uint64_t id) {
  const std::size_t pool = (id & ~kIdBit) >> kPoolShift;
  if (pool != 0) pools_[pool - 1].free.push_back(static_cast<std::uint32_t>(id));
}

}  // namespace rtrs::verbs
