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
      surroundings_{surroundings} {
  // All of them now, so that no I/O pays for it.
  for (std::size_t n = 0; n < facts_.queue_depth; n += kContextsPerBlock) add_contexts();
}

BlockSession::~BlockSession() {
  for (const auto& device : devices_.slots()) {
    if (device != nullptr) release(*device);
  }
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
      return open(request);
    case wire::MessageType::close:
      return close(request);
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

void BlockSession::open(rtrs::ServerRequest& request) {
  auto wanted = wire::decode_open(request.message);
  // The room for the answer is checked first: nobody could close a device without its id.
  if (!wanted || !request.is_read || request.data.size() < sizeof(wire::OpenResponse))
    return finish(request, EINVAL);
  if (const Device* device = devices_.find(wanted->device_name))
    return answer_open(request, *device);
  if (devices_.full()) return finish(request, EMFILE);
  if (!catalogue_.has(wanted->device_name) && catalogue_.has_search_path())
    return open_file(request, std::move(*wanted));
  auto lease = catalogue_.open_named(wanted->device_name, wanted->mode);
  if (lease) return opened(request, wanted->device_name, std::move(*lease));
  opened(request, wanted->device_name,
         tl::unexpected(
             Failure{lease.error(), quoted(wanted->device_name) + ": " + why(lease.error())}));
}

/// The session outlives this, because the request is not finished.
void BlockSession::open_file(rtrs::ServerRequest& request, wire::OpenRequest wanted) {
  struct Job {
    wire::OpenRequest wanted;
    std::optional<tl::expected<Lease, Failure>> result;
  };
  auto job = std::make_shared<Job>(Job{std::move(wanted), std::nullopt});
  surroundings_.run_blocking(
      queues_.reactor(),
      [this, job] {
        job->result.emplace(
            catalogue_.open_file(facts_.name, job->wanted.device_name, job->wanted.mode));
      },
      [this, job, &request] { opened(request, job->wanted.device_name, std::move(*job->result)); });
}

void BlockSession::opened(rtrs::ServerRequest& request, const std::string& name,
                          tl::expected<Lease, Failure> lease) {
  // Another OPEN of the same name may have finished while this one waited for a file.
  if (const Device* device = devices_.find(name)) return answer_open(request, *device);
  if (!lease) {
    log_refusal("refused to open " + lease.error().text);
    return finish(request, lease.error().error);
  }
  if (devices_.full()) return finish(request, EMFILE);
  BackendQueue* queue = queues_.acquire(lease->storage());
  if (queue == nullptr) return finish(request, ENOMEM);
  const Device& device = devices_.add(std::make_unique<Device>(name, std::move(*lease), *queue));
  surroundings_.say(rtrs::LogLevel::info, facts_.name + " (" + facts_.peer + "): opened " +
                                              quoted(name) + " " +
                                              wire::to_string(device.lease.mode()));
  answer_open(request, device);
}

void BlockSession::answer_open(rtrs::ServerRequest& request, const Device& device) {
  const wire::OpenResponse response =
      open_response(device.geometry(), device.id, device.lease.writable(), facts_.max_io_size);
  finish_with(request, rtrs::wire::bytes_of(response));
}

void BlockSession::close(rtrs::ServerRequest& request) {
  const auto message = wire::decode<wire::Close>(request.message, wire::MessageType::close);
  if (!message) return finish(request, EINVAL);
  if (request.is_read) std::fill(request.data.begin(), request.data.end(), std::byte{});
  Device* device = devices_.find(message->device_id);
  if (device == nullptr) return finish(request, 0);
  device->closing = true;
  if (RTRS_PLANTED(close_too_early) && device->running > 0) return finish(request, 0);
  device->closers.push_back(&request);
  if (device->running == 0) finish_close(*device);
}

/// The last answer may end the session, so nothing of it is touched afterwards.
void BlockSession::finish_close(Device& device) {
  const auto closers = std::move(device.closers);
  surroundings_.say(rtrs::LogLevel::info,
                    facts_.name + " (" + facts_.peer + "): closed " + quoted(device.name));
  release(device);
  devices_.take(device.id).reset();
  for (rtrs::ServerRequest* request : closers) finish(*request, 0);
}

void BlockSession::release(Device& device) { queues_.release(device.queue); }

void BlockSession::log_refusal(const std::string& line) {
  if (refusals_ == kMaxRefusalLines) return;
  ++refusals_;
  const char* end = refusals_ == kMaxRefusalLines ? " (further refusals are not logged)" : "";
  surroundings_.say(rtrs::LogLevel::warning, facts_.name + " (" + facts_.peer + "): " + line + end);
}

}  // namespace rnbd
