// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/verbs/async_events.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace rtrs::verbs {
namespace {

/// nullptr: it goes on.
const char* end_of(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_QP_FATAL:
      return "the RDMA device gave the connection up: an error inside the device";
    case IBV_EVENT_QP_REQ_ERR:
      return "the peer asked for something that the RDMA device cannot make sense of";
    case IBV_EVENT_QP_ACCESS_ERR:
      return "the peer used a key or an address that it may not use";
    default:
      return nullptr;
  }
}

constexpr const char* kCompletionsLost =
    "the RDMA device lost track of what it has done: the completion queue overflowed or broke";
constexpr const char* kDeviceFailed = "the RDMA device failed, or is being removed";

}  // namespace

std::shared_ptr<AsyncEvents> AsyncEvents::of(ibv_context* device) {
  static std::mutex mutex;
  static std::map<ibv_context*, std::weak_ptr<AsyncEvents>> all;
  const std::lock_guard lock{mutex};
  // A device that was closed may have left its address to another one.
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  if (const auto found = all.find(device); found != all.end()) {
    if (auto events = found->second.lock()) return events;
  }
  fcntl(device->async_fd, F_SETFL, fcntl(device->async_fd, F_GETFL) | O_NONBLOCK);
  std::shared_ptr<AsyncEvents> events{new AsyncEvents{device}};
  all[device] = events;
  return events;
}

void AsyncEvents::add(const Subject& subject) {
  const std::lock_guard lock{mutex_};
  subjects_[subject.id->qp].subject = subject;
  if (reader_ == nullptr) find_reader();
}

void AsyncEvents::remove(const ibv_qp* queue_pair) {
  const std::lock_guard lock{mutex_};
  const auto found = subjects_.find(queue_pair);
  if (found == subjects_.end()) return;
  const Entry gone = found->second;
  subjects_.erase(found);
  if (gone.signal >= 0) ::close(gone.signal);
  if (reader_ != queue_pair) return;
  epoll_ctl(gone.subject.events, EPOLL_CTL_DEL, descriptor(), nullptr);
  find_reader();
}

/// With the lock held.
void AsyncEvents::find_reader() {
  reader_ = nullptr;
  for (const auto& [queue_pair, told] : subjects_) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = descriptor()}};
    if (epoll_ctl(told.subject.events, EPOLL_CTL_ADD, descriptor(), &event) != 0) continue;
    reader_ = queue_pair;
    return;
  }
}

void AsyncEvents::add_log(const void* owner, Log log) {
  const std::lock_guard lock{mutex_};
  if (log) logs_[owner] = std::move(log);
}

void AsyncEvents::forget_log(const void* owner) {
  const std::lock_guard lock{mutex_};
  logs_.erase(owner);
}

void AsyncEvents::read() {
  ibv_async_event event{};
  errno = 0;
  while (ibv_get_async_event(device_, &event) == 0) {
    {
      const std::lock_guard lock{mutex_};
      handle(event);
    }
    // Without the lock, and always: before it the event's objects cannot be destroyed by their
    // owners.
    ibv_ack_async_event(&event);
    errno = 0;
  }
  if (errno == EAGAIN || errno == EINTR) return;
  // There will be no more events, and the descriptor would wake everybody for ever.
  const std::lock_guard lock{mutex_};
  give_up_all(kDeviceFailed);
}

void AsyncEvents::handle(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR:
      return handle_completions(event.element.cq);
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
      return handle_queue_pair(event);
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE:
      return handle_device(event);
    default:
      return;  // of things that this program has not
  }
}

void AsyncEvents::handle_queue_pair(const ibv_async_event& event) {
  const auto found = subjects_.find(event.element.qp);
  if (found == subjects_.end()) return;  // it is being closed
  if (event.event_type == IBV_EVENT_COMM_EST) {
    // The peer sends, and the message that the connection stands is late or lost.
    rdma_notify(found->second.subject.id, event.event_type);
  } else {
    give_up(found->second, end_of(event.event_type));
  }
}

void AsyncEvents::handle_completions(const ibv_cq* completions) {
  for (auto& [queue_pair, told] : subjects_) {
    if (told.subject.completions == completions) give_up(told, kCompletionsLost);
  }
}

void AsyncEvents::handle_device(const ibv_async_event& event) {
  const std::string port = "port " + std::to_string(event.element.port_num);
  switch (event.event_type) {
    case IBV_EVENT_DEVICE_FATAL:
      say(LogLevel::error, "it failed, or is being removed");
      return give_up_all(kDeviceFailed);
    case IBV_EVENT_PORT_ERR:
      return say(LogLevel::warning, port + " is down");
    case IBV_EVENT_PORT_ACTIVE:
      return say(LogLevel::info, port + " is up");
    case IBV_EVENT_GID_CHANGE:
      return say(LogLevel::info, "the addresses of " + port + " have changed");
    default:
      return say(LogLevel::debug, port + ": " + ibv_event_type_str(event.event_type));
  }
}

void AsyncEvents::give_up(Entry& entry, const char* why) {
  const char* nothing = nullptr;
  if (!entry.subject.trouble->compare_exchange_strong(nothing, why)) return;
  // If it cannot be woken, it finds out when it looks for something else.
  entry.signal = eventfd(/*initval=*/1, EFD_CLOEXEC | EFD_NONBLOCK);
  if (entry.signal < 0) return;
  epoll_event event{.events = EPOLLIN, .data = {.fd = entry.signal}};
  epoll_ctl(entry.subject.events, EPOLL_CTL_ADD, entry.signal, &event);
}

void AsyncEvents::give_up_all(const char* why) {
  for (auto& [queue_pair, told] : subjects_) give_up(told, why);
}

void AsyncEvents::say(LogLevel level, const std::string& text) const {
  if (logs_.empty()) return;
  logs_.begin()->second(
      level, std::string{"RDMA device "} + ibv_get_device_name(device_->device) + ": " + text);
}

}  // namespace rtrs::verbs
