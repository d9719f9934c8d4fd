// SPDX-License-Identifier: BSD-3-Clause
// Questions about a session, and changes of it, while it works: its paths, and memory of callers.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "rdma/transport/client/driver.hpp"
#include "rdma/transport/client/memory_path_driver.hpp"
#include "rdma/transport/client/options.hpp"
#include "rdma/transport/clock.hpp"

namespace rtrs {

std::vector<PathStatus> ClientDriver::paths() {
  std::vector<PathStatus> all;
  call_on_io([&] {
    for (unsigned i = 0; i < session_.path_count(); ++i) {
      if (session_.at(i).exists()) all.push_back(status_on_io(i));
    }
  });
  return all;
}

Duration ClientDriver::time_without_path() {
  Duration time{};
  call_on_io([&] { time = session_.outages().total(now()); });
  return time;
}

ServerId ClientDriver::server_id() {
  ServerId id = 0;
  call_on_io([&] { id = session_.server_id(); });
  return id;
}

PathStatus ClientDriver::status_on_io(unsigned path) {
  PathStatus status;
  status.address = options_.paths[path];
  status.state = session_.at(path).state;
  status.in_use = !closed_ && (machine_.in_use() >> path & 1) != 0;
  status.leaving = session_.at(path).leaving();
  status.access = session_.at(path).last_access();
  status.foreign = session_.at(path).foreign;
  status.trouble = notices_.failure_of(session_.at(path).trouble).text;
  if (status.state == PathState::waiting && !session_.may_try(path)) {
    status.trouble =
        session_.is_elsewhere(path) ? notices_.led_elsewhere() : notices_.waits_for_others();
  }
  status.connects = session_.at(path).connects;
  const Silences& silences = session_.at(path).silences;
  if (const auto since = silences.since()) {
    status.silent = now() - *since;
    if (status.trouble.empty()) status.trouble = "silent: its requests go over other paths, too";
  }
  status.silences = silences.count();
  if (status.trouble.empty() && session_.at(path).distrust.active()) {
    status.trouble = "not used for a while: it fell silent again and again";
  }
  if (const PathDriver* driver = paths_.find(path)) {
    status.latency = session_.path(path).pulse().latency();
    status.security = driver->security();
  }
  lanes_.for_each([&](ClientLane& lane) {
    status.requests += lane.connection(path).sent();
    status.in_flight += lane.in_flight(path);
    status.left += lane.connection(path).left();
  });
  return status;
}

tl::expected<void, Failure> ClientDriver::change(
    const std::function<tl::expected<void, Failure>()>& step) {
  tl::expected<void, Failure> result;
  call_on_io([&] {
    if (closed_) {
      result = tl::unexpected(Failure{EIO, "the session is over: " + failure()});
      return;
    }
    result = step();
    if (result) feed_on_io({.kind = ClientEvent::Kind::came_or_goes});
  });
  return result;
}

tl::expected<void, Failure> ClientDriver::add_path(const PathAddress& path) {
  return change([&]() -> tl::expected<void, Failure> {
    const auto added = directory_.add(path, now());
    if (!added) return tl::unexpected(added.error());
    if (const auto number = *added) {
      paths_.forget(*number);
      notices_.forget(*number);
    }
    return {};
  });
}

tl::expected<void, Failure> ClientDriver::remove_path(const PathAddress& path) {
  return change([&]() -> tl::expected<void, Failure> {
    const auto number = directory_.removable(path);
    if (!number) return tl::unexpected(number.error());
    feed_on_io({.kind = ClientEvent::Kind::remove, .path = *number});
    return {};
  });
}

tl::expected<void, Failure> ClientDriver::disconnect(const PathAddress& path) {
  return change([&]() -> tl::expected<void, Failure> {
    const auto number = directory_.number_of(path);
    if (!number) return tl::unexpected(number.error());
    feed_on_io({.kind = ClientEvent::Kind::disconnect, .path = *number});
    return {};
  });
}

tl::expected<void, Failure> ClientDriver::reconnect(const PathAddress& path) {
  return change([&]() -> tl::expected<void, Failure> {
    const auto number = directory_.number_of(path);
    if (!number) return tl::unexpected(number.error());
    session_.reconnect(*number, now());
    return {};
  });
}

void ClientDriver::set_policy(PathPolicy policy) {
  call_on_io([&] {
    options_.policy = policy;
    if (closed_) return;
    for (unsigned i = 0; i < session_.path_count(); ++i) {
      if (session_.at(i).state != PathState::connected) continue;
      const Duration latency = session_.path(i).pulse().latency();
      lanes_.for_each([&](ClientLane& lane) { lane.set_latency(i, latency); });
    }
    feed_on_io({.kind = ClientEvent::Kind::new_policy});
  });
}

// ---- Memory ------------------------------------------------------------------------------------

tl::expected<void, Failure> ClientDriver::register_memory(MutableBytes memory) {
  if (memory.empty()) return tl::unexpected(Failure{EINVAL, "there is no memory to register"});
  return change([&] { return memory_.add(memory); });
}

tl::expected<void, Failure> ClientDriver::forget_memory(MutableBytes memory) {
  tl::expected<void, Failure> result;
  call_on_io([&] { result = memory_.remove(memory); });
  return result;
}

tl::expected<std::unique_ptr<MemoryPath>, Failure> ClientDriver::open_memory_path(
    const PathAddress& address, const Interrupt& interrupt) {
  if ((limits_.features & wire::kFeatureMemoryPaths) == 0) {
    return tl::unexpected(
        Failure{ENOTSUP, "the server has no memory paths (is it older, or built without them?)"});
  }
  if (!alive()) return tl::unexpected(Failure{EIO, failure()});
  ClientPathOptions path;
  call_on_io([&] { path = session_.memory_path(); });
  auto driver = std::make_unique<MemoryPathDriver>(
      std::move(path), connect_options(options_, address, options_.connect_timeout),
      options_.connect_timeout);
  if (auto up = driver->establish(interrupt); !up) return tl::unexpected(up.error());
  return driver;
}

}  // namespace rtrs
