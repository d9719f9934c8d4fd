// SPDX-License-Identifier: BSD-3-Clause
// Memory of callers that the devices of all paths know.
#include <algorithm>
#include <cerrno>

#include "rdma/transport/client_driver.hpp"
#include "rdma/transport/memory_path_driver.hpp"

namespace rtrs {
namespace {

/// The same memory, not only the same bytes.
bool is_same(ConstBytes a, ConstBytes b) { return a.data() == b.data() && a.size() == b.size(); }

}  // namespace

tl::expected<std::unique_ptr<MemoryPath>, Failure> ClientDriver::open_memory_path(
    const PathAddress& address, const Interrupt& interrupt) {
  if ((limits_.features & wire::kFeatureMemoryPaths) == 0) {
    return tl::unexpected(Failure{
        ENOTSUP, "the server has no memory paths (is it older, or does it export no brick?)"});
  }
  if (!alive()) return tl::unexpected(Failure{EIO, failure()});
  ClientPathOptions path;
  call_on_io([&] { path = session_.memory_path(); });
  auto driver = std::make_unique<MemoryPathDriver>(
      std::move(path), connect_options(address, options_.connect_timeout),
      options_.connect_timeout);
  if (auto up = driver->establish(interrupt); !up) return tl::unexpected(up.error());
  return driver;
}

tl::expected<void, Failure> ClientDriver::register_memory(MutableBytes memory) {
  if (memory.empty()) return tl::unexpected(Failure{EINVAL, "there is no memory to register"});
  return change([&] { return register_on_io(memory); });
}

tl::expected<void, Failure> ClientDriver::register_on_io(MutableBytes memory) {
  const auto is_it = [memory](ConstBytes other) { return is_same(memory, other); };
  if (std::ranges::any_of(memories_, is_it)) {
    return tl::unexpected(Failure{EEXIST, "this memory is registered already"});
  }
  tl::expected<void, Failure> result;
  for (auto& lane : lanes_) {
    lane->with_connections([&](Connection& connection) {
      if (result) result = connection.register_memory(memory);
    });
  }
  if (!result) {
    forget_on_io(memory);
    return result;
  }
  memories_.push_back(memory);
  return result;
}

tl::expected<void, Failure> ClientDriver::forget_memory(MutableBytes memory) {
  tl::expected<void, Failure> result;
  call_on_io([&] {
    const auto erased =
        std::erase_if(memories_, [memory](ConstBytes other) { return is_same(memory, other); });
    if (erased == 0) {
      result = tl::unexpected(Failure{ENOENT, "this memory is not registered"});
      return;
    }
    forget_on_io(memory);
  });
  return result;
}

void ClientDriver::forget_on_io(MutableBytes memory) {
  for (auto& lane : lanes_) {
    lane->with_connections([memory](Connection& connection) { connection.forget_memory(memory); });
  }
}

/// Of a path that has come. Memory that its device does not take is copied.
void ClientDriver::register_all_on_io(unsigned path, Connection& connection) const {
  for (const MutableBytes memory : memories_) {
    const auto known = connection.register_memory(memory);
    if (!known)
      notices_.log(LogLevel::warning, notices_.name_of_path(path) + ": " + known.error().text);
  }
}

}  // namespace rtrs
