// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/control.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace rnbd {

ControlOperation::ControlOperation(rtrs::ConstBytes message, rtrs::MutableBytes answer,
                                   bool is_read) {
  std::size_t size = std::min(message.size(), message_.size());
  std::copy_n(message.begin(), size, message_.begin());
  request_.message = {message_.data(), size};
  request_.read_data = answer;
  request_.is_read = is_read;
  request_.done = &ControlOperation::on_done;
  request_.context = this;
}

void ControlOperation::start(rtrs::ClientLane& lane) {
  if (device_id_ != nullptr) take_device_id();
  lane.submit(request_);
}

void ControlOperation::take_device_id() {
  const wire::le32 id = device_id_->load(std::memory_order_relaxed);
  std::memcpy(message_.data() + kIdOffset, &id, sizeof(id));
}

void ControlOperation::on_renew(rtrs::Request& request) {
  static_cast<ControlOperation*>(request.context)->take_device_id();
}

void ControlOperation::cancel(rtrs::ClientLane& lane) { lane.cancel(request_); }

void ControlOperation::on_done(rtrs::ClientLane& /*lane*/, rtrs::Request& request) {
  static_cast<ControlOperation*>(request.context)->finish(request.error);
}

CloseByName::CloseByName(const std::string& device, wire::AccessMode access, DeviceHandle& handle)
    : handle_{handle}, open_{wire::encode_open(device, access)} {
  close_.header = wire::header_of(wire::MessageType::close);
  request_.renew = &CloseByName::on_renew;
  request_.scope = &handle.unresolved;
  request_.done = &CloseByName::on_done;
  request_.context = this;
}

void CloseByName::start(rtrs::ClientLane& lane) { ask(lane, rtrs::wire::bytes_of(open_), answer_); }

/// An OPEN is a read, a CLOSE is not.
void CloseByName::ask(rtrs::ClientLane& lane, rtrs::ConstBytes message, rtrs::MutableBytes answer) {
  request_.message = message;
  request_.read_data = answer;
  request_.is_read = !answer.empty();
  lane.submit(request_);
}

void CloseByName::on_opened(rtrs::ClientLane& lane, int error) {
  if (error != 0) return finish(error == EIO ? EIO : 0);
  const auto opened = wire::decode<wire::OpenResponse>(answer_, wire::MessageType::open_response);
  if (!opened) return finish(EPROTO);
  handle_.id = opened->device_id;
  close_.device_id = opened->device_id;
  ask(lane, rtrs::wire::bytes_of(close_), {});
}

void CloseByName::on_renew(rtrs::Request& request) {
  auto& self = *static_cast<CloseByName*>(request.context);
  self.close_.device_id = self.handle_.id.load(std::memory_order_relaxed);
}

void CloseByName::on_done(rtrs::ClientLane& lane, rtrs::Request& request) {
  auto& self = *static_cast<CloseByName*>(request.context);
  if (request.is_read) return self.on_opened(lane, request.error);
  self.finish(request.error);
}

}  // namespace rnbd
