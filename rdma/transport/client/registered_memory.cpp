// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/client/registered_memory.hpp"

#include <algorithm>
#include <cerrno>

namespace rtrs {
namespace {

/// The same memory, not only the same bytes.
auto is_same_as(ConstBytes memory) {
  return [memory](ConstBytes other) {
    return memory.data() == other.data() && memory.size() == other.size();
  };
}

}  // namespace

tl::expected<void, Failure> RegisteredMemory::add(MutableBytes memory) {
  if (std::ranges::any_of(memories_, is_same_as(memory))) {
    return tl::unexpected(Failure{EEXIST, "this memory is registered already"});
  }
  tl::expected<void, Failure> result;
  lanes_.for_each_connection([&](Connection& connection) {
    if (result) result = connection.register_memory(memory);
  });
  if (!result) {
    forget(memory);
    return result;
  }
  memories_.push_back(memory);
  return result;
}

tl::expected<void, Failure> RegisteredMemory::remove(MutableBytes memory) {
  if (std::erase_if(memories_, is_same_as(memory)) == 0) {
    return tl::unexpected(Failure{ENOENT, "this memory is not registered"});
  }
  forget(memory);
  return {};
}

void RegisteredMemory::forget(MutableBytes memory) {
  lanes_.for_each_connection(
      [memory](Connection& connection) { connection.forget_memory(memory); });
}

std::vector<Failure> RegisteredMemory::introduce_to(Connection& connection) const {
  std::vector<Failure> refusals;
  for (const MutableBytes memory : memories_) {
    if (auto known = connection.register_memory(memory); !known) refusals.push_back(known.error());
  }
  return refusals;
}

}  // namespace rtrs
