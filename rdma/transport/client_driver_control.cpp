// SPDX-License-Identifier: BSD-3-Clause
// Questions about a session's paths, and changes of them, while it works.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>

#include "rdma/path_list.hpp"
#include "rdma/transport/client_driver.hpp"
#include "rdma/transport/client_options.hpp"
#include "rdma/transport/clock.hpp"

namespace rtrs {
std::vector<PathStatus> ClientDriver::paths() {
  std::vector<PathStatus> all;
  call_on_io([&] {
    for (unsigned i = 0; i < session_.path_count(); ++i) {
      if (session_.has(i)) all.push_back(status_on_io(i));
    }
  });
  return all;
}

Duration ClientDriver::time_without_path() {
  Duration time{};
  call_on_io([&] { time = session_.time_without_path(now()); });
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
  status.state = session_.state(path);
  status.in_use = !closed_ && (machine_.in_use() >> path & 1) != 0;
  status.leaving = session_.leaving(path);
  status.access = session_.access(path);
  status.foreign = session_.foreign(path);
  status.trouble = notices_.failure_of(session_.trouble(path)).text;
  if (status.state == PathState::waiting && !session_.may_try(path)) {
    status.trouble = ClientNotices::waits_for_others();
  }
  status.connects = session_.connects(path);
  if (paths_[path].driver) {
    status.latency = session_.path(path).latency();
    status.security = paths_[path].driver->security();
  }
  for_each_lane([&](ClientLane& lane) {
    status.requests += lane.connection(path).sent();
    status.in_flight += lane.in_flight(path);
  });
  return status;
}

/// Those that are leaving are none of them.
PathList ClientDriver::staying_on_io() const {
  std::vector<PathAddress> paths;
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    if (session_.has(i) && !session_.leaving(i)) paths.push_back(options_.paths[i]);
  }
  return PathList{std::move(paths)};
}

std::optional<unsigned> ClientDriver::find_on_io(const PathAddress& address) const {
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    if (session_.has(i) && options_.paths[i] == address) return i;
  }
  return std::nullopt;
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
    if (auto fits = can_carry(path, options_.tls); !fits) return fits;
    PathList list = staying_on_io();
    if (auto added = list.add(path); !added) return added;
    if (const auto index = find_on_io(path)) {
      session_.stay(*index);
      session_.set_rank(*index, session_path(options_, path).rank);
      options_.paths[*index].preference = path.preference;
      return {};
    }
    const auto index = session_.add(session_path(options_, path), now());
    if (!index) {
      return tl::unexpected(
          Failure{ENOSPC,
                  "paths that were removed are still leaving (the server may be at what came over "
                  "them); try again later"});
    }
    options_.paths.resize(std::max<std::size_t>(options_.paths.size(), *index + 1));
    options_.paths[*index] = path;
    paths_[*index].lookup.reset();
    notices_.forget(*index);
    return {};
  });
}

tl::expected<void, Failure> ClientDriver::remove_path(const PathAddress& path) {
  return change([&]() -> tl::expected<void, Failure> {
    PathList list = staying_on_io();
    if (auto removed = list.remove(path); !removed) return removed;
    const unsigned index = *find_on_io(path);
    if (!others_have_led_there_on_io(index)) {
      return tl::unexpected(Failure{
          EBUSY, "no other path has led to the server yet, so none could take the place of " +
                     to_string(path) + "; wait until another one is connected"});
    }
    feed_on_io({.kind = ClientEvent::Kind::remove, .path = index});
    return {};
  });
}

/// So that one of them could begin the session anew.
bool ClientDriver::others_have_led_there_on_io(unsigned path) const {
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    const bool stays = i != path && session_.has(i) && !session_.leaving(i);
    if (stays && session_.access(i)) return true;
  }
  return false;
}

tl::expected<void, Failure> ClientDriver::disconnect(const PathAddress& path) {
  return change([&]() -> tl::expected<void, Failure> {
    if (auto there = staying_on_io().contains(path); !there) return there;
    feed_on_io({.kind = ClientEvent::Kind::disconnect, .path = *find_on_io(path)});
    return {};
  });
}

tl::expected<void, Failure> ClientDriver::reconnect(const PathAddress& path) {
  return change([&]() -> tl::expected<void, Failure> {
    if (auto there = staying_on_io().contains(path); !there) return there;
    session_.reconnect(*find_on_io(path), now());
    return {};
  });
}

void ClientDriver::set_policy(PathPolicy policy) {
  call_on_io([&] {
    options_.policy = policy;
    if (closed_) return;
    for (unsigned i = 0; i < session_.path_count(); ++i) {
      if (session_.state(i) != PathState::connected) continue;
      const Duration latency = session_.path(i).latency();
      for_each_lane([&](ClientLane& lane) { lane.set_latency(i, latency); });
    }
    feed_on_io({.kind = ClientEvent::Kind::new_policy});
  });
}

}  // namespace rtrs
