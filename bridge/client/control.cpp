#include "bridge/client/control.hpp"

#include <algorithm>
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

}  // namespace rnbd
