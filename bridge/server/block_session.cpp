// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/block_session.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "bridge/protocol/printable.hpp"
#include "bridge/server/brick_client.hpp"
#include "bridge/server/io_context.hpp"
#include "rdma/core/plant.hpp"

namespace rnbd {
namespace {

/// The most refused OPENs that may still have copies under way. Honest clients have a handful.
constexpr std::size_t kMaxRefused = 1024;

}  // namespace

void record_leaving(ExportCatalogue& catalogue, const Surroundings& surroundings,
                    rtrs::Reactor* reactor) {
  if (!catalogue.has_left()) return;
  surroundings.run_recording(reactor, [&catalogue] { catalogue.record_left(); }, {});
}

BlockSession::BlockSession(SessionFacts facts, ExportCatalogue& catalogue, QueueTable& queues,
                           const Surroundings& surroundings)
    : facts_{std::move(facts)},
      catalogue_{catalogue},
      queues_{queues},
      surroundings_{surroundings},
      log_{facts_, surroundings_},
      devices_{facts_.ids},
      brick_{facts_, devices_, surroundings_, queues_.reactor(),
             [this](Device& device) { finish_close(device); }},
      member_{facts_,
              devices_,
              surroundings_,
              queues_.reactor(),
              log_,
              [this](rtrs::ServerRequest& request, Device& device, const IoPlan& plan) {
                IoContext& io = take_context(request, device, plan);
                return [this, &io](int error) { complete(io, error); };
              }},
      throttle_{in_force(facts_.throttle)},
      flow_{queues_.reactor()} {
  // All of them now, so that no I/O pays for it.
  for (std::size_t n = 0; n < facts_.queue_depth; n += kContextsPerBlock) add_contexts();
}

BlockSession::~BlockSession() {
  for (const auto& device : devices_.slots()) {
    if (device != nullptr) release(*device);
  }
  devices_ = OpenTable{};
  record_leaving();
}

void BlockSession::on_request(rtrs::ServerRequest& request) {
  const auto type = wire::decode_type(request.message);
  if (!type) return finish(request, EINVAL);
  switch (*type) {
    case wire::MessageType::io:
      return io(request, Turn::not_yet);
    case wire::MessageType::session_info:
      return session_info(request);
    case wire::MessageType::open:
    case wire::MessageType::close:
      return in_order(request, *type);
    default:
      return extension(request, *type);
  }
}

void BlockSession::session_info(rtrs::ServerRequest& request) {
  const auto info =
      wire::decode<wire::SessionInfo>(request.message, wire::MessageType::session_info);
  if (!info) return finish(request, EINVAL);
  wire::SessionInfo answer;
  answer.header = wire::header_of(wire::MessageType::session_info_response);
  answer.version = std::min(info->version, wire::kProtocolMajor);
  finish_with(request, rtrs::wire::bytes_of(answer));
}

wire::OpenOrder BlockSession::order_of(const rtrs::ServerRequest& request, std::size_t size) const {
  return facts_.extensions ? wire::order_of(request.message, size) : wire::OpenOrder{};
}

/// Only clients that number their OPENs say so.
OpenKind BlockSession::open_kind(const rtrs::ServerRequest& open,
                                 const wire::OpenRequest& wanted) const {
  if (order_of(open, sizeof(wire::Open)).number == 0) return OpenKind::unknown;
  return (wanted.flags & wire::kOpenAgain) != 0 ? OpenKind::again : OpenKind::anew;
}

/// The errno with which an OPEN must end, because its sender has left or has been answered
/// elsewhere: it is a copy that was late, or that took long. Its device would never be closed. 0:
/// it may go on.
int BlockSession::verdict(const rtrs::ServerRequest& open, const std::string& name) const {
  const std::uint32_t number = order_of(open, sizeof(wire::Open)).number;
  if (number == 0) return 0;
  if (number < settled_) return ECANCELED;
  const auto closed = closed_.find(name);
  if (closed != closed_.end() && number <= closed->second) return ECANCELED;
  const auto refused = refused_.find(number);
  return refused != refused_.end() ? refused->second : 0;
}

void BlockSession::settle(const wire::OpenOrder& order) {
  settled_ = std::max(settled_, order.settled.value());
  refused_.erase(refused_.begin(), refused_.lower_bound(settled_));
  std::erase_if(closed_, [this](const auto& closed) { return closed.second < settled_; });
}

void BlockSession::refuse(rtrs::ServerRequest& open, int error) {
  refuse_copies(order_of(open, sizeof(wire::Open)).number, error);
  if (surroundings_.meters != nullptr) surroundings_.meters->refused(error);
  finish(open, error);
}

/// Until the number is settled, for which the client may have to wait for the answers to others.
void BlockSession::refuse_copies(std::uint32_t number, int error) {
  if (number >= settled_ && number != 0 && refused_.size() < kMaxRefused) {
    refused_.emplace(number, error);
  }
}

/// In the order in which they came: clients that do not number their OPENs rely on it.
void BlockSession::in_order(rtrs::ServerRequest& request, wire::MessageType type) {
  if (reservations_under_way_ > 0) return held_.push_back({&request, type});
  if (type == wire::MessageType::claim) return claim(request);
  type == wire::MessageType::open ? open(request) : close(request);
}

/// Takes up the requests that came during a reservation. The last answer may end the session, so
/// this touches nothing of the session afterwards, unless more requests wait. One that is refused
/// at once comes here, too.
void BlockSession::go_on() {
  bool more = !held_.empty() && !going_on_;
  while (more && reservations_under_way_ == 0) {
    const Held next = held_.front();
    held_.pop_front();
    more = going_on_ = !held_.empty();
    in_order(*next.request, next.type);
  }
  if (more) going_on_ = false;
}

void BlockSession::close(rtrs::ServerRequest& request) {
  const auto message = wire::decode<wire::Close>(request.message, wire::MessageType::close);
  if (!message) return finish(request, EINVAL);
  if (request.is_read) std::fill(request.data.begin(), request.data.end(), std::byte{});
  const wire::OpenOrder order = order_of(request, sizeof(wire::Close));
  settle(order);
  Device* device = devices_.find(message->device_id);
  if (message->device_id == wire::kUnknownDevice && order.number != 0) {
    device = devices_.find_opened_by(order.number);
  }
  refuse_copies(order.number, ECANCELED);
  if (device == nullptr) return finish(request, 0);
  // A recovery that was cut short may have sent OPENs that arrive late, too.
  const std::uint32_t newest = device->newest_number;
  if (newest >= settled_ && newest != 0 && closed_.size() < kMaxRefused) {
    closed_.insert_or_assign(device->name, newest);
  }
  device->closing = device->watched = true;
  if (RTRS_PLANTED(close_too_early) && device->running > 0) return finish(request, 0);
  end_waiting(*device);
  device->closers.push_back(&request);
  if (device->running + device->waiting == 0) finish_close(*device);
}

/// The last answer may end the session, so nothing of it is touched afterwards.
void BlockSession::finish_close(Device& device) {
  if (device.brick != nullptr) return brick_.end_maps(device);
  const auto closers = std::move(device.closers);
  log_.say(rtrs::LogLevel::info, "device_closed", device.name, "closed " + in_quotes(device.name));
  release(device);
  device.lease.close();
  devices_.take(device.id).reset();
  record_leaving();
  for (rtrs::ServerRequest* request : closers) finish(*request, 0);
}

void BlockSession::record_leaving() {
  rnbd::record_leaving(catalogue_, surroundings_, queues_.reactor());
}

void BlockSession::release(Device& device) {
  if (device.brick != nullptr) device.brick->leave([] {});
  if (device.seat != nullptr) device.seat->leave(device.mirror_session);
  queues_.release(device.queue);
}

/// Devices know from then on that the storage is a member's.
void BlockSession::drain(const WriterCount* storage, const Device* but,
                         const std::shared_ptr<void>& token) {
  for (const auto& device : devices_.slots()) {
    if (device == nullptr || device.get() == but) continue;
    if (device->lease.storage()->writers() != storage) continue;
    device->seat = device->lease.storage()->seat().get();
    if (device->running == 0) continue;
    device->watched = true;
    device->drainers.push_back(token);
  }
}

}  // namespace rnbd
