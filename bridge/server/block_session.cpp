#include "bridge/server/block_session.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "bridge/server/io_context.hpp"
#include "rdma/core/plant.hpp"

namespace rnbd {
namespace {

/// Bits that the reply has for an errno.
constexpr int kMaxErrno = 511;

/// Lines of refused OPENs that one client may cause in the log.
constexpr unsigned kMaxRefusalLines = 20;

/// Refused OPENs of which copies may be under way. Honest clients have a handful.
constexpr std::size_t kMaxRefused = 1024;

std::string why(int error) {
  switch (error) {
    case ENOENT:
      return "there is no such export";
    case EPERM:
      return "somebody else writes to it";
    case EROFS:
      return "it is read-only";
    default:
      return std::strerror(error);
  }
}

Failure unrecorded(const std::string& name, const std::string& reason) {
  return {EIO, quoted(name) + ": cannot record who writes to it: " + reason};
}

}  // namespace

void finish(rtrs::ServerRequest& request, int error) {
  if (RTRS_PLANTED(errno_truncated)) return request.finish(error & kMaxErrno);
  request.finish(error < 0 || error > kMaxErrno ? EIO : error);
}

void finish_with(rtrs::ServerRequest& request, wire::ConstBytes bytes) {
  if (!request.is_read || request.data.size() < bytes.size()) return finish(request, EINVAL);
  std::memcpy(request.data.data(), bytes.data(), bytes.size());
  std::memset(request.data.data() + bytes.size(), 0, request.data.size() - bytes.size());
  finish(request, 0);
}

BlockSession::BlockSession(SessionFacts facts, ExportCatalogue& catalogue, QueueTable& queues,
                           const Surroundings& surroundings)
    : facts_{std::move(facts)},
      catalogue_{catalogue},
      queues_{queues},
      surroundings_{surroundings},
      devices_{facts_.ids} {
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
      return io(request);
    case wire::MessageType::session_info:
      return session_info(request);
    case wire::MessageType::open:
    case wire::MessageType::close:
      return open_or_close(request, *type);
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

/// Only those who number their OPENs say.
Coming BlockSession::coming(const rtrs::ServerRequest& open) const {
  if (order_of(open, sizeof(wire::Open)).number == 0) return Coming::unknown;
  const auto wanted = wire::decode_open(open.message);
  return wanted && (wanted->flags & wire::kOpenAgain) != 0 ? Coming::again : Coming::anew;
}

wire::Uuid BlockSession::coming_again(const rtrs::ServerRequest& open) const {
  return coming(open) == Coming::again ? facts_.uuid : wire::Uuid{};
}

/// How an OPEN ends whatever it finds, because its sender has been answered elsewhere or has left:
/// a copy that was late, or that took long. Nobody would close what it opens. 0: it may go on.
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
  finish(open, error);
}

/// Until the number is settled, for which the client may have to wait for the answers to others.
void BlockSession::refuse_copies(std::uint32_t number, int error) {
  if (number >= settled_ && number != 0 && refused_.size() < kMaxRefused) {
    refused_.emplace(number, error);
  }
}

/// In the order in which they came: clients that do not number their OPENs rely on it.
void BlockSession::open_or_close(rtrs::ServerRequest& request, wire::MessageType type) {
  if (turns_under_way_ > 0) return held_.push_back({&request, type});
  type == wire::MessageType::open ? open(request) : close(request);
}

/// What came while a turn was taken. The last answer may end the session, so nothing of it is
/// touched afterwards.
void BlockSession::go_on() {
  bool more = !held_.empty();
  while (more && turns_under_way_ == 0) {
    const Held next = held_.front();
    held_.pop_front();
    more = !held_.empty();
    open_or_close(*next.request, next.type);
  }
}

void BlockSession::open(rtrs::ServerRequest& request) {
  auto wanted = wire::decode_open(request.message);
  // The room for the answer is checked first: nobody could close a device without its id.
  if (!wanted || !request.is_read || request.data.size() < sizeof(wire::OpenResponse))
    return finish(request, EINVAL);
  settle(order_of(request, sizeof(wire::Open)));
  if (int error = verdict(request, wanted->device_name)) return finish(request, error);
  if (Device* device = devices_.find(wanted->device_name)) return answer_open(request, *device);
  if (devices_.full()) return refuse(request, EMFILE);
  if (!catalogue_.has(wanted->device_name) && catalogue_.has_search_path())
    return open_file(request, std::move(*wanted), /*again=*/false);
  open_export(request, *wanted, /*again=*/false);
}

void BlockSession::open_export(rtrs::ServerRequest& request, const wire::OpenRequest& wanted,
                               bool again) {
  const std::string& name = wanted.device_name;
  auto lease = catalogue_.open_named(name, wanted.mode, coming_again(request));
  if (lease) return take_turn(request, name, std::move(*lease));
  const bool retry = lease.error() == EPERM && !again &&
                     reclaim(request, catalogue_.writers(name), [this, &request, wanted] {
                       open_export(request, wanted, /*again=*/true);
                     });
  if (retry) return;
  opened(request, name,
         tl::unexpected(Failure{lease.error(), quoted(name) + ": " + why(lease.error())}));
}

/// Of the writers, before anything is written, but not beside itself in whatever mode: what is
/// closed while it still runs would undo what is written next. Who wants to migrate takes part
/// beside whoever is there, but not beside one that was cut off. The session outlives this, because
/// the request is not finished.
void BlockSession::take_turn(rtrs::ServerRequest& request, const std::string& name, Lease lease) {
  if (int error = verdict(request, name)) return finish(request, error);
  if (lease.writable() && is_closing(lease.storage()->writers())) {
    return opened(
        request, name,
        tl::unexpected(Failure{EPERM, quoted(name) + ": what was under "
                                                     "way when it was closed has not ended"}));
  }
  if (catalogue_.rejoin(lease, facts_.uuid, coming(request))) {
    return opened(request, name, std::move(lease));
  }
  const bool migrates = lease.mode() == wire::AccessMode::migration;
  const WriterCount* const writers = lease.storage()->writers();
  const auto job = std::make_shared<Turn>(Turn{&request, name, std::move(lease), {}});
  ++turns_under_way_;
  if (migrates && reclaim(request, writers, [this, job] { record_turn(job); })) return;
  record_turn(job);
}

void BlockSession::record_turn(const std::shared_ptr<Turn>& turn) {
  surroundings_.run_recording(
      queues_.reactor(),
      [this, turn] {
        turn->taken = catalogue_.take_turn(turn->lease, facts_.uuid, coming(*turn->request));
      },
      [this, turn] {
        --turns_under_way_;
        const bool more = !held_.empty();
        if (turn->taken) {
          opened(*turn->request, turn->name, std::move(turn->lease));
        } else {
          opened(*turn->request, turn->name,
                 tl::unexpected(unrecorded(turn->name, turn->taken.error())));
        }
        if (more) go_on();
      });
}

/// The session outlives this, because the request is not finished.
void BlockSession::open_file(rtrs::ServerRequest& request, wire::OpenRequest wanted, bool again) {
  struct Job {
    wire::OpenRequest wanted;
    std::optional<tl::expected<Lease, Refusal>> result;
  };
  auto job = std::make_shared<Job>(Job{std::move(wanted), std::nullopt});
  const auto then = [this, job, &request, again] {
    auto& result = *job->result;
    if (result) return take_turn(request, job->wanted.device_name, std::move(*result));
    const Refusal& refusal = result.error();
    const bool retry = refusal.error == EPERM && !again &&
                       reclaim(request, refusal.writers, [this, job, &request] {
                         open_file(request, job->wanted, /*again=*/true);
                       });
    if (!retry) opened(request, job->wanted.device_name, tl::unexpected(Failure{refusal}));
  };
  surroundings_.run_blocking(
      queues_.reactor(),
      [this, job, again_as = coming_again(request)] {
        job->result.emplace(
            catalogue_.open_file(facts_.name, job->wanted.device_name, job->wanted.mode, again_as));
      },
      then);
}

/// Somebody else writes to it; perhaps a client that is gone and may come back, but does not use it
/// now. `again` is to be tried then. False: there is nobody to ask. Who comes back takes nothing
/// away from others: it may find that it must not write.
bool BlockSession::reclaim(const rtrs::ServerRequest& open, const WriterCount* storage,
                           std::function<void()> again) {
  if (!surroundings_.reclaim || coming(open) == Coming::again) return false;
  surroundings_.reclaim(queues_.reactor(), storage, std::move(again));
  return true;
}

bool BlockSession::is_closing(const WriterCount* storage) const {
  return std::ranges::any_of(devices_.slots(), [&](const std::unique_ptr<Device>& device) {
    return device != nullptr && device->closing && device->lease.writable() &&
           device->lease.storage()->writers() == storage;
  });
}

bool BlockSession::writes_to(const WriterCount* storage) const {
  return std::ranges::any_of(devices_.slots(), [&](const std::unique_ptr<Device>& device) {
    return device != nullptr && device->lease.writable() &&
           device->lease.storage()->writers() == storage;
  });
}

void BlockSession::opened(rtrs::ServerRequest& request, const std::string& name,
                          tl::expected<Lease, Failure> lease) {
  if (int error = verdict(request, name)) return finish(request, error);
  // Another OPEN of the same name may have finished while this one waited for a file.
  if (Device* device = devices_.find(name)) return answer_open(request, *device);
  if (!lease) {
    // Who is content with reading asks again, as clients do by default.
    if (lease.error().error != EROFS) log_refusal("refused to open " + lease.error().text);
    return refuse(request, lease.error().error);
  }
  if (devices_.full()) return refuse(request, EMFILE);
  BackendQueue* queue = queues_.acquire(lease->storage());
  if (queue == nullptr) return refuse(request, ENOMEM);
  Device& device = devices_.add(std::make_unique<Device>(name, std::move(*lease), *queue));
  device.open_number = order_of(request, sizeof(wire::Open)).number;
  device.writer_serial = catalogue_.writer_serial(device.lease);
  surroundings_.say(rtrs::LogLevel::info, facts_.peer,
                    facts_.name + " (" + facts_.peer + "): opened " + quoted(name) + " " +
                        wire::to_string(device.lease.mode()));
  answer_open(request, device);
}

void BlockSession::answer_open(rtrs::ServerRequest& request, Device& device) {
  const std::uint32_t number = order_of(request, sizeof(wire::Open)).number;
  device.newest_number = std::max(device.newest_number, number);
  device.lease.look_again();
  const wire::OpenResponse response =
      open_response(device.geometry(), device.id, device.lease.writable(), facts_.max_io_size);
  finish_with(request, rtrs::wire::bytes_of(response));
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
  // A renewal that was cut short may have sent OPENs that come late, too.
  const std::uint32_t newest = device->newest_number;
  if (newest >= settled_ && newest != 0 && closed_.size() < kMaxRefused) {
    closed_.insert_or_assign(device->name, newest);
  }
  device->closing = true;
  if (RTRS_PLANTED(close_too_early) && device->running > 0) return finish(request, 0);
  device->closers.push_back(&request);
  if (device->running == 0) finish_close(*device);
}

/// The last answer may end the session, so nothing of it is touched afterwards.
void BlockSession::finish_close(Device& device) {
  const auto closers = std::move(device.closers);
  surroundings_.say(rtrs::LogLevel::info, facts_.peer,
                    facts_.name + " (" + facts_.peer + "): closed " + quoted(device.name));
  release(device);
  device.lease.close();
  devices_.take(device.id).reset();
  record_leaving();
  for (rtrs::ServerRequest* request : closers) finish(*request, 0);
}

void BlockSession::record_leaving() {
  if (!catalogue_.has_left()) return;
  surroundings_.run_recording(queues_.reactor(),
                              [&catalogue = catalogue_] { catalogue.record_left(); }, {});
}

void BlockSession::release(Device& device) { queues_.release(device.queue); }

void BlockSession::log_refusal(const std::string& line) {
  if (refusals_ == kMaxRefusalLines) return;
  ++refusals_;
  const char* end = refusals_ == kMaxRefusalLines ? " (further refusals are not logged)" : "";
  surroundings_.say(rtrs::LogLevel::warning, facts_.peer,
                    facts_.name + " (" + facts_.peer + "): " + line + end);
}

}  // namespace rnbd
