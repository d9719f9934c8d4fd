// SPDX-License-Identifier: BSD-3-Clause
// The client's half of the C interface.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <span>

#include "rdma/library/client_handle.hpp"
#include "rdma/library/options.hpp"
#include "rdma/library/uri.hpp"
#include "rdma/path_list.hpp"

using rtrs::Failure;
using rtrs::library::Gate;
using rtrs::library::plan_call;
using rtrs::library::tell;
using rtrs::library::Visit;

namespace {

/// The size of an operation in the first version: the smallest there is.
constexpr std::size_t kOperation = offsetof(rtrs_operation, private_data) + sizeof(void*);

/// No exception may pass the C interface.
Failure failure_of(const std::exception& exception) {
  const bool memory = dynamic_cast<const std::bad_alloc*>(&exception) != nullptr;
  return {memory ? ENOMEM : EAGAIN, exception.what()};
}

int refuse(const Visit& visit, rtrs_error* error) {
  tell({visit.refusal(), rtrs_strerror(visit.refusal())}, error);
  return visit.refusal();
}

int change_path(rtrs_client* client, const char* text, rtrs_error* error,
                tl::expected<void, Failure> (rtrs::Client::*change)(const rtrs::PathAddress&)) {
  const Visit visit{client};
  if (visit.refusal() != 0) return refuse(visit, error);
  const auto path =
      rtrs::library::parse_path(text != nullptr ? text : "", rtrs::TransportKind::tcp);
  if (!path) return tell(path.error(), error), path.error().error;
  const auto done = (client->client().*change)(*path);
  if (!done) return tell(done.error(), error), done.error().error;
  return 0;
}

/// As much as the caller knows of.
template <class T>
void write_out(T from, T* to) {
  const std::size_t size = std::min(to->size, sizeof(T));
  from.size = to->size;
  std::memcpy(to, &from, size);
}

std::uint64_t nanoseconds(rtrs::Duration time) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
}

rtrs_path view_of(const rtrs::PathStatus& status) {
  rtrs_path path{};
  const std::string address = rtrs::to_string(status.address);
  std::memcpy(path.address, address.data(), std::min(address.size(), sizeof(path.address) - 1));
  path.connected = status.state == rtrs::PathState::connected ? 1 : 0;
  path.in_use = status.in_use ? 1 : 0;
  path.requests = status.requests;
  path.in_flight = status.in_flight;
  path.latency_ns = nanoseconds(status.latency);
  path.silent_ns = nanoseconds(status.silent);
  path.silences = status.silences;
  path.moved = status.left;
  return path;
}

}  // namespace

const char* rtrs_version(void) { return RNBDKIT_VERSION; }

const char* rtrs_strerror(int error) {
  switch (error) {
    case RTRS_UNKNOWN_OUTCOME:
      return "the answer is lost with the server or the paths: carried out once, or not at all";
    case RTRS_FORKED:
      return "it was made before fork(), and works only in the process that made it: connect again "
             "in this one";
    case ECANCELED:
      return "the client was closed meanwhile: carried out once, or not at all";
    case EHOSTUNREACH:
      return "no path to the server worked in time: not carried out";
    case EMSGSIZE:
      return "the message is longer than 240 bytes, the data are more than the server takes "
             "(max_request_size of its options), or the answer is longer than the room for it (in "
             "of the call)";
    case ENOBUFS:
      return "the server has no memory for so large a request now";
    default:
      return strerrordesc_np(error) != nullptr ? strerrordesc_np(error) : "unknown error";
  }
}

rtrs_client* rtrs_connect(const char* uri, const rtrs_client_options* options, rtrs_error* error) {
  try {
    const rtrs::library::NoSignals no_signals;
    const rtrs::library::NoCancellation no_cancellation;
    const auto known = rtrs::library::read_options(options);
    if (!known) return tell(known.error(), error), nullptr;
    auto client = rtrs_client::connect(uri, *known);
    if (!client) return tell(client.error(), error), nullptr;
    return client->release();
  } catch (const std::exception& exception) {
    return tell(failure_of(exception), error), nullptr;
  }
}

void rtrs_shutdown(rtrs_client* client) {
  const Visit visit{client, &Gate::enter_even_closed};
  if (visit.refusal() == 0) client->shut_down();
}

void rtrs_disconnect(rtrs_client* client) {
  if (client == nullptr || client->gate().left_behind()) return;
  const rtrs::library::NoCancellation no_cancellation;
  client->gate().close();
  client->gate().wait_until_empty();
  delete client;
}

int rtrs_call(rtrs_client* client, const void* message, size_t message_length, const iovec* out,
              int out_count, const iovec* in, int in_count, size_t* answer_length, unsigned flags) {
  const Visit visit{client};
  if (visit.refusal() != 0) return visit.refusal();
  const auto plan = plan_call(message, message_length, out, out_count, in, in_count, flags);
  if (!plan) return plan.error();
  try {
    return client->run(*plan, flags, answer_length);
  } catch (const std::exception& exception) {
    return failure_of(exception).error;
  }
}

int rtrs_ask(rtrs_client* client, const void* message, size_t message_length, const iovec* out,
             int out_count, size_t most, void** answer, size_t* answer_length, unsigned flags) {
  *answer = nullptr;
  const Visit visit{client};
  if (visit.refusal() != 0) return visit.refusal();
  auto plan = plan_call(message, message_length, out, out_count, nullptr, 0, flags);
  if (!plan) return plan.error();
  rtrs::library::OwnedAnswer owned;
  plan->room = most;
  plan->owned = &owned;
  try {
    const int error = client->run(*plan, flags, answer_length);
    if (error == 0) *answer = owned.take();
    return error;
  } catch (const std::exception& exception) {
    return failure_of(exception).error;
  }
}

void rtrs_free(void* memory) { rtrs::library::large_free(memory); }

int rtrs_submit(rtrs_client* client, rtrs_operation* operation) {
  const Visit visit{client};
  if (visit.refusal() != 0) return visit.refusal();
  if (operation->size < kOperation) return EINVAL;
  auto plan = plan_call(operation->message, operation->message_length, operation->out,
                        operation->out_count, operation->in, operation->in_count, operation->flags);
  if (!plan) return plan.error();
  if (rtrs::library::asks(*operation)) {
    if (operation->in_count != 0) return EINVAL;
    plan->room = operation->most;
  }
  try {
    return client->submit(*operation, *plan);
  } catch (const std::exception& exception) {
    return failure_of(exception).error;
  }
}

int rtrs_cancel(rtrs_client* client, rtrs_operation* operation) {
  const Visit visit{client, &Gate::enter_even_closed};
  return visit.refusal() != 0 ? visit.refusal() : client->cancel(*operation);
}

int rtrs_fd(rtrs_client* client) {
  const Visit visit{client, &Gate::enter_even_closed};
  if (visit.refusal() != 0) return errno = visit.refusal(), -1;
  const int descriptor = client->descriptor();
  if (descriptor < 0) errno = client->gate().is_closed() ? ECANCELED : EAGAIN;
  return descriptor;
}

int rtrs_next(rtrs_client* client, rtrs_operation** operations, int count) {
  const Visit visit{client, &Gate::enter_even_closed};
  if (visit.refusal() != 0) return 0;
  const int taken = client->next(operations, count);
  if (taken < 0) errno = ECANCELED;
  return taken;
}

int rtrs_register_memory(rtrs_client* client, void* memory, size_t length, rtrs_error* error) {
  const Visit visit{client};
  if (visit.refusal() != 0) return refuse(visit, error);
  try {
    const auto known = client->client().register_memory({static_cast<std::byte*>(memory), length});
    return known ? 0 : (tell(known.error(), error), known.error().error);
  } catch (const std::exception& exception) {
    return tell(failure_of(exception), error), ENOMEM;
  }
}

int rtrs_unregister_memory(rtrs_client* client, void* memory, size_t length) {
  const Visit visit{client, &Gate::enter_even_closed};
  if (visit.refusal() != 0) return visit.refusal();
  try {
    const auto known = client->client().forget_memory({static_cast<std::byte*>(memory), length});
    return known ? 0 : known.error().error;
  } catch (const std::exception&) {
    return ENOMEM;
  }
}

void rtrs_client_limits(rtrs_client* client, rtrs_limits* limits) {
  const Visit visit{client};
  rtrs_limits result{};
  if (visit.refusal() == 0 || visit.refusal() == RTRS_FORKED) {
    const rtrs::SessionLimits& session = client->client().limits();
    result.queue_depth = session.queue_depth;
    result.max_io_size = session.max_io_size;
  }
  write_out(result, limits);
}

int rtrs_client_alive(rtrs_client* client) {
  const Visit visit{client};
  return visit.refusal() == 0 && client->client().alive() ? 1 : 0;
}

int rtrs_client_paths(rtrs_client* client, rtrs_path* paths, int count) {
  const Visit visit{client};
  if (visit.refusal() != 0) return 0;
  try {
    const auto all = client->client().paths();
    const auto known = std::min<std::size_t>(all.size(), std::max(count, 0));
    // The caller's elements are as large as he says.
    auto* at = reinterpret_cast<unsigned char*>(paths);
    for (std::size_t i = 0; i < known; ++i) {
      auto* path = reinterpret_cast<rtrs_path*>(at);
      at += path->size;
      write_out(view_of(all[i]), path);
    }
    return static_cast<int>(all.size());
  } catch (const std::exception&) {
    return 0;
  }
}

int rtrs_add_path(rtrs_client* client, const char* path, rtrs_error* error) {
  return change_path(client, path, error, &rtrs::Client::add_path);
}

int rtrs_remove_path(rtrs_client* client, const char* path, rtrs_error* error) {
  return change_path(client, path, error, &rtrs::Client::remove_path);
}

int rtrs_set_policy(rtrs_client* client, const char* policy) {
  const Visit visit{client};
  if (visit.refusal() != 0) return visit.refusal();
  const auto parsed = rtrs::library::parse_policy(policy != nullptr ? policy : "");
  if (!parsed) return parsed.error().error;
  client->client().set_policy(*parsed);
  return 0;
}
