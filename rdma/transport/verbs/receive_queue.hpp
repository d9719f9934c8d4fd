// SPDX-License-Identifier: BSD-3-Clause
// The receives of a verbs queue pair and the buffers behind them.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rdma/transport/verbs/domain.hpp"

namespace rtrs::verbs {

/// Posts receives in the order in which they are asked for. Those for immediates have no buffer;
/// those for messages have one each, which is used again.
///
/// Threads: as its queue pair.
/// Source:  ibv_post_recv(3).
class ReceiveQueue {
 public:
  ReceiveQueue(ibv_pd* domain, ibv_qp* queue_pair) : domain_{domain}, queue_pair_{queue_pair} {}

  /// The next flush() posts them.
  void add(unsigned count, std::uint32_t bytes);
  /// Errors: the reason, in words; "" = fine.
  std::string flush();

  /// The first `bytes` of the buffer that a completed receive used.
  ConstBytes message(std::uint64_t id, std::uint32_t bytes) const;
  /// The buffer may be used again.
  void release(std::uint64_t id);

  /// Marks the ids of receives among those of all work requests.
  static constexpr std::uint64_t kIdBit = std::uint64_t{1} << 63;

 private:
  struct Buffer {
    std::byte* memory;
    std::uint32_t key;
  };
  /// Buffers of one size.
  struct Pool {
    std::uint32_t bytes = 0;
    std::vector<std::unique_ptr<Region>> regions;
    std::vector<Buffer> buffers;
    std::vector<std::uint32_t> free;
  };
  struct Wanted {
    unsigned count;
    std::uint32_t bytes;
  };

  std::string post(const Wanted& wanted);
  std::size_t pool_of(std::uint32_t bytes);
  std::string grow(Pool& pool, unsigned count);

  ibv_pd* domain_;
  ibv_qp* queue_pair_;
  std::vector<Pool> pools_;  ///< few: a connection knows two sizes at most
  std::vector<Wanted> wanted_;
};

}  // namespace rtrs::verbs
