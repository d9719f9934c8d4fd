// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/server/path_chunks.hpp"

#include <functional>

namespace rtrs {
namespace {

/// Memory is given back in pages of this size, on nearly all machines.
constexpr std::uint64_t kPage = 4096;

/// Begins there.
bool lies_in(ConstBytes part, ConstBytes whole) {
  const std::less<> before;
  return !before(part.data(), whole.data()) && before(part.data(), whole.data() + whole.size());
}

bool executes(const ServerRequest& request) {
  return request.state == ServerRequest::State::executing ||
         request.state == ServerRequest::State::ended;
}

}  // namespace

std::vector<MutableBytes> PathChunks::unused(std::span<const ServerRequest> requests) const {
  std::vector<MutableBytes> unused;
  std::size_t from = 0;
  for (const ServerRequest& request : requests) {
    if (!executes(request)) continue;
    if (!lies_in(request.data, memory_)) continue;
    const auto begin = static_cast<std::size_t>(request.data.data() - memory_.data());
    unused.push_back(memory_.subspan(from, begin - from));
    from = begin + request.data.size();
  }
  unused.push_back(memory_.subspan(from));
  return unused;
}

std::uint64_t PathChunks::held(std::span<const ServerRequest> requests) {
  std::uint64_t sum = 0;
  for (const ServerRequest& request : requests) {
    if (executes(request)) sum += (request.data.size() + kPage - 1) / kPage * kPage;
  }
  return sum;
}

}  // namespace rtrs
